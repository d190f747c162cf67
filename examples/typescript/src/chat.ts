// One turn of a chat that remembers, with Vercel's AI SDK and any OpenAI-compatible model:
// MEMORY_URL=http://127.0.0.1:8080 LLM_URL=http://127.0.0.1:11434/v1 LLM_MODEL=qwen2.5:3b npm run chat -- "May I eat peanuts?"
import { randomUUID } from "node:crypto";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, tool } from "ai";
import { z } from "zod";
import { answer, connect, type Message } from "./memory.js";

const memory = connect(process.env.MEMORY_URL ?? "http://127.0.0.1:8080", process.env.MEMORY_KEY);
const llm = createOpenAICompatible({
  name: "llm",
  baseURL: process.env.LLM_URL ?? "http://127.0.0.1:11434/v1",
  apiKey: process.env.LLM_KEY,
});
// chosen by your application, never by the model
const user = process.env.CHAT_USER ?? "ada";
const conversation = process.env.CHAT ?? `chat-${randomUUID()}`;
const question = process.argv[2] ?? "May I eat peanuts?";

function said(role: Message["role"], content: string): Message {
  return { id: randomUUID(), conversation_id: conversation, user_id: user, role, content };
}

const recall = tool({
  description: "Search what the user said in earlier conversations.",
  inputSchema: z.object({ query: z.string().describe("Words or a question to search for.") }),
  execute: async ({ query }) => {
    const found = await answer(memory.POST("/v1/recall", { body: { query, user_id: user, form: "text" } }));
    return found.as_text;
  },
});

// summary and last messages of this conversation, fenced as data; a new one has none
const { data: context } = await memory.GET("/v1/conversations/{conversation_id}/context", {
  params: { path: { conversation_id: conversation }, query: { user_id: user, max_tokens: 2000, form: "text" } },
});

const { text } = await generateText({
  model: llm(process.env.LLM_MODEL ?? "qwen2.5:3b"),
  instructions: ["You are a helpful assistant.", context?.as_text ?? ""].join("\n\n"),
  prompt: question,
  tools: { recall },
  stopWhen: isStepCount(5),
});
await answer(memory.POST("/v1/messages", { body: { messages: [said("user", question), said("assistant", text)] } }));
console.log(text);
