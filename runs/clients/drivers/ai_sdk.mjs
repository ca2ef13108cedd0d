// AI SDK: a streamed tool loop with both forms of its OpenAI provider, openai-compatible, and Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { drive, key, model, prompt, proof, v1, weather } from "./given.mjs";

const tools = { weather: tool({ inputSchema: z.object({ city: z.string() }), execute: weather }) };
const loop = (chosen) => async () => {
  const result = streamText({ model: chosen, prompt, tools, stopWhen: stepCountIs(5) });
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  return result.text;
};

const openai = createOpenAI({ baseURL: v1, apiKey: key }).chat(model);
const responses = createOpenAI({ baseURL: v1, apiKey: key })(model);
const compatible = createOpenAICompatible({ name: "headway", baseURL: v1, apiKey: key })(model);
const anthropic = createAnthropic({ baseURL: v1, apiKey: key })(model);

await drive({
  "tool loop": loop(openai),
  "tool loop, Responses": loop(responses),
  "tool loop, openai-compatible": loop(compatible),
  "tool loop, Anthropic": loop(anthropic),
  proof: async () => {
    const streams = [openai, responses, compatible, anthropic].map((chosen) => streamText({ model: chosen, prompt }));
    await Promise.all(streams.map((stream) => stream.consumeStream()));
    const [ofOpenAI, ofResponses, ofCompatible, ofAnthropic] = streams;
    return proof({
      "header, OpenAI": (await generateText({ model: openai, prompt })).response.headers["headway-tier-served"],
      "header, OpenAI, streamed": (await ofOpenAI.response).headers["headway-tier-served"],
      "header, openai-compatible, streamed": (await ofCompatible.response).headers["headway-tier-served"],
      Responses: (await generateText({ model: responses, prompt })).usage.raw.headway.tier_served,
      "Responses, streamed": (await ofResponses.usage).raw.headway.tier_served,
      "openai-compatible": (await generateText({ model: compatible, prompt })).usage.raw.headway.tier_served,
      Anthropic: (await generateText({ model: anthropic, prompt })).usage.raw.headway.tier_served,
      "Anthropic, streamed": (await ofAnthropic.usage).raw.headway.tier_served,
    });
  },
});
