// A client of `afterword serve`. `npm run types` generates its types from the server's OpenAPI document.
import createClient from "openapi-fetch";
import type { components, paths } from "./openapi.js";

export type Message = components["schemas"]["NewMessage"];

/** Some of the fields of `summary.created`; docs/reference/events.md lists all of them. */
export type Summary = { event_id: string; episode_id: string; title: string; short_summary: string };

export function connect(baseUrl: string, key?: string) {
  return createClient<paths>({ baseUrl, headers: key ? { Authorization: `Bearer ${key}` } : {} });
}

/** Returns the response's data, or throws an error that says what is wrong. */
export async function answer<T>(request: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await request;
  if (data === undefined) {
    throw new Error(`${response.status} ${response.url}: ${JSON.stringify(error)}`);
  }
  return data;
}

/** Yields a conversation's summaries as they are announced, until the connection ends. */
export async function* summaries(baseUrl: string, conversationId: string, key?: string): AsyncGenerator<Summary> {
  const url = new URL("/v1/events", baseUrl);
  url.searchParams.set("type", "summary.created");
  url.searchParams.set("conversation_id", conversationId);
  const response = await fetch(url, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (!response.ok || response.body === null) {
    throw new Error(`${response.status} ${url}`);
  }
  let text = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const events = text.split(/\r?\n\r?\n/);
    text = events.pop() ?? "";
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data: "));
      if (data.length > 0) {
        yield JSON.parse(data.map((line) => line.slice("data: ".length)).join("\n")) as Summary;
      }
    }
  }
}
