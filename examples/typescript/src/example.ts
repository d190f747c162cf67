// Says something in one conversation, waits for its summary, and recalls it in another:
// MEMORY_URL=http://127.0.0.1:8080 npm start
import { randomUUID } from "node:crypto";
import { answer, connect, summaries, type Message } from "./memory.js";

const url = process.env.MEMORY_URL ?? "http://127.0.0.1:8080";
const key = process.env.MEMORY_KEY; // from `afterword keys create`, if the server needs one
const memory = connect(url, key);

const conversation = `chat-${randomUUID()}`;
const user = `ada-${randomUUID()}`;
const path = { conversation_id: conversation };

function said(id: string, role: Message["role"], content: string): Message {
  return { id, conversation_id: conversation, user_id: user, role, content };
}

const announced = summaries(url, conversation, key);
const first = announced.next(); // listen before anything is said

const messages = [
  said("1", "user", "I am allergic to peanuts, please remember that."),
  said("2", "assistant", "Noted: no peanuts for you."),
];
await answer(memory.POST("/v1/messages", { body: { messages } }));
await answer(memory.POST("/v1/conversations/{conversation_id}/flush", { params: { path }, body: {} }));

const { value: summary } = await first;
console.log(`summary: ${summary?.title}`);
await announced.return(undefined);

const { hits } = await answer(memory.POST("/v1/recall", { body: { query: "May I eat peanuts?", user_id: user } }));
for (const hit of hits) {
  for (const match of hit.matches ?? []) {
    console.log(`recalled: ${match.role}: ${match.content}`);
  }
}

const context = await answer(
  memory.GET("/v1/conversations/{conversation_id}/context", { params: { path, query: { max_tokens: 500 } } }),
);
console.log(`context: ${context.messages.length} messages, ${context.tokens} tokens`);
