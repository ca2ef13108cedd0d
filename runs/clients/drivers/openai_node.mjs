// openai: its stream helper, its tool runner, a parsed answer.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { drive, key, model, prompt, proof, v1, weather } from "./given.mjs";

const client = new OpenAI({ baseURL: v1, apiKey: key });
const messages = [{ role: "user", content: prompt }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: weather } },
];

await drive({
  stream: () => client.chat.completions.stream({ model, messages }).finalContent(),
  "tool loop": () => client.chat.completions.runTools({ model, messages, tools }).finalContent(),
  "tool loop, streamed": () => client.chat.completions.runTools({ model, messages, tools, stream: true }).finalContent(),
  parsed: async () => {
    const City = z.object({ city: z.string(), degrees: z.number() });
    const response_format = zodResponseFormat(City, "city");
    const completion = await client.chat.completions.parse({ model, messages, response_format });
    const { city, degrees } = completion.choices[0].message.parsed;
    return `${city}: ${degrees}`;
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
