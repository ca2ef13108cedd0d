// AI SDK: a streamed tool loop with the chat form of its OpenAI provider, openai-compatible, and Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { drive, key, model, prompt, v1, weather } from "./given.mjs";

const tools = { weather: tool({ inputSchema: z.object({ city: z.string() }), execute: weather }) };
const loop = (chosen) => async () => {
  const result = streamText({ model: chosen, prompt, tools, stopWhen: stepCountIs(5) });
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  return result.text;
};

await drive({
  "tool loop": loop(createOpenAI({ baseURL: v1, apiKey: key }).chat(model)),
  "tool loop, openai-compatible": loop(createOpenAICompatible({ name: "headway", baseURL: v1, apiKey: key })(model)),
  "tool loop, Anthropic": loop(createAnthropic({ baseURL: v1, apiKey: key })(model)),
});
