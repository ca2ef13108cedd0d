// openai: its stream helpers, its tool runner, loops and parsed answers with `responses`.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { drive, key, model, prompt, proof, v1, weather } from "./given.mjs";

const client = new OpenAI({ baseURL: v1, apiKey: key });
const messages = [{ role: "user", content: prompt }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [
  { type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: weather } },
];
const responsesTools = [{ type: "function", name: "weather", parameters }];
const City = z.object({ city: z.string(), degrees: z.number() });

function toolResults({ output }) {
  const calls = output.filter((item) => item.type === "function_call");
  return calls.map(({ call_id, arguments: given }) => {
    return { type: "function_call_output", call_id, output: weather(JSON.parse(given)) };
  });
}

await drive({
  stream: () => client.chat.completions.stream({ model, messages }).finalContent(),
  "tool loop": () => client.chat.completions.runTools({ model, messages, tools }).finalContent(),
  "tool loop, streamed": () => client.chat.completions.runTools({ model, messages, tools, stream: true }).finalContent(),
  parsed: async () => {
    const response_format = zodResponseFormat(City, "city");
    const completion = await client.chat.completions.parse({ model, messages, response_format });
    const { city, degrees } = completion.choices[0].message.parsed;
    return `${city}: ${degrees}`;
  },
  "tool loop, Responses": async () => {
    const input = [...messages];
    while (true) {
      const response = await client.responses.stream({ model, input, tools: responsesTools }).finalResponse();
      const results = toolResults(response);
      if (!results.length) return response.output_text;
      input.push(...response.output, ...results);
    }
  },
  "tool loop, previous_response_id": async () => {
    let response = await client.responses.create({ model, input: prompt, tools: responsesTools });
    for (let input; (input = toolResults(response)).length; ) {
      const previous_response_id = response.id;
      response = await client.responses.create({ model, input, tools: responsesTools, previous_response_id });
    }
    return response.output_text;
  },
  "parsed, Responses": async () => {
    const text = { format: zodTextFormat(City, "city") };
    const { city, degrees } = (await client.responses.parse({ model, input: prompt, text })).output_parsed;
    return `${city}: ${degrees}`;
  },
  proof: async () => {
    const { data, response } = await client.chat.completions.create({ model, messages }).withResponse();
    const stream = client.chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    const responseStream = client.responses.stream({ model, input: prompt });
    return proof({
      Responses: (await client.responses.create({ model, input: prompt })).usage.headway.tier_served,
      "Responses, streamed": (await responseStream.finalResponse()).usage.headway.tier_served,
      whole: data.usage.headway.tier_served,
      streamed: (await stream.finalChatCompletion()).usage.headway.tier_served,
      header: response.headers.get("headway-tier-served"),
    });
  },
});
