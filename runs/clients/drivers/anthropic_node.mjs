// @anthropic-ai/sdk: its stream helper, its tool runner whole and streamed.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { drive, key, model, prompt, proof, url, weather } from "./given.mjs";

const client = new Anthropic({ baseURL: url, apiKey: key });
const messages = [{ role: "user", content: prompt }];
const tool = () =>
  betaZodTool({ name: "weather", description: "Weather", inputSchema: z.object({ city: z.string() }), run: weather });
const textOf = (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
const ask = (more) => ({ model, max_tokens: 1000, messages, ...more });

await drive({
  stream: () => client.messages.stream(ask()).finalText(),
  "tool loop": async () => textOf(await client.beta.messages.toolRunner(ask({ tools: [tool()] }))),
  "tool loop, streamed": async () => {
    let message;
    for await (const stream of client.beta.messages.toolRunner(ask({ tools: [tool()], stream: true }))) {
      message = await stream.finalMessage();
    }
    return textOf(message);
  },
  proof: async () => {
    const { data, response } = await client.messages.create(ask()).withResponse();
    const stream = client.messages.stream(ask());
    let streamed;
    stream.on("streamEvent", (event) => {
      if (event.type === "message_delta") streamed = event.usage.headway.tier_served;
    });
    return proof({
      "final message": (await stream.finalMessage()).usage.speed,
      whole: data.usage.headway.tier_served,
      streamed,
      header: response.headers.get("headway-tier-served"),
    });
  },
});
