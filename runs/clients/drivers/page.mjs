// The page of browser.mjs: openai's tool runner whole and streamed, and a stream read with fetch alone.
import OpenAI from "openai";
import { drive, key, model, prompt, proof, v1, weather } from "./given.mjs";

const client = new OpenAI({ baseURL: v1, apiKey: key, dangerouslyAllowBrowser: true });
const messages = [{ role: "user", content: prompt }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: weather } },
];

await drive({
  "tool loop": () => client.chat.completions.runTools({ model, messages, tools }).finalContent(),
  "tool loop, streamed": () => client.chat.completions.runTools({ model, messages, tools, stream: true }).finalContent(),
  "stream, fetch": async () => {
    const response = await fetch(`${v1}/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify({ model, messages, stream: true }),
    });
    let stream = "";
    for await (const piece of response.body.pipeThrough(new TextDecoderStream())) stream += piece;
    const events = stream.split("\n\n").filter((event) => event.startsWith("data: {"));
    return events.map((event) => JSON.parse(event.slice(6)).choices[0]?.delta.content ?? "").join("");
  },
  proof: async () => {
    const { data, response } = await client.chat.completions.create({ model, messages }).withResponse();
    const stream = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    return proof({
      whole: data.usage.headway.tier_served,
      streamed: (await stream.finalChatCompletion()).usage.headway.tier_served,
      header: response.headers.get("headway-tier-served"),
    });
  },
});
