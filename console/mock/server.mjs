// Serves the built page with the gateway's headers and MADE-UP figures that move, to look at while developing:
//
//     npm run build && npm run mock -- --port 8999
//     http://127.0.0.1:8999/console#key=mock
//
// --replicas N, --hostile (names that try to break the page), --bare (no ledger, no report, no cell).
// POST /mock/silence?seconds=10 makes it answer 503. Nothing of this is in the package.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { MadeUp } from "./made_up.mjs";

const { values: options } = parseArgs({
  options: {
    port: { type: "string", default: "8999" },
    replicas: { type: "string", default: "7" },
    hostile: { type: "boolean", default: false },
    bare: { type: "boolean", default: false },
  },
});
const page = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "headway", "console", "page");
const types = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", txt: "text/plain; charset=utf-8" };
const headers = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cache-control": "no-cache",
};
const madeUp = new MadeUp({ ...options, replicas: Number(options.replicas) });
let silentUntil = 0;

function answer(response, status, body) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

const fail = (response, status, message) => answer(response, status, { error: { message } });

async function file(response, name) {
  try {
    const body = await readFile(join(page, name));
    response.writeHead(200, { ...headers, "content-type": types[name.split(".").pop()] }).end(body);
  } catch {
    fail(response, 404, "There is no such page.");
  }
}

function admin(request, response, path) {
  if (Date.now() < silentUntil) return fail(response, 503, "The dispatcher does not answer.");
  if (request.headers.authorization !== "Bearer mock") return fail(response, 401, "This page needs an admin key (here: mock).");
  const name = path.slice("/admin/".length);
  if (!["live", "offers", "money", "keys", "mistakes"].includes(name)) return fail(response, 404, "There is no such page.");
  const body = madeUp[name]();
  return answer(response, 200, body ?? { not_kept: "There is no ledger." });
}

async function chat(request, response) {
  let text = "";
  for await (const piece of request) text += piece;
  const asked = JSON.parse(text);
  if (asked.messages[0].content.startsWith("refuse"))
    return fail(response.setHeader("retry-after", "2"), 429, "No light seat was free within 3 s. Try again, or ask for standard.");
  const served = asked.service_tier === "flex" ? "standard" : asked.service_tier;
  response.writeHead(200, { "content-type": "text/event-stream", "headway-tier-served": served });
  const tps = { fast: 62, ultrafast: 118 }[served] ?? 24;
  const words = "A made-up answer, <b>as text</b>, and not from a model: fewer streams, lighter steps, quicker tokens.".split(" ");
  const began = Date.now();
  let [sent, timer] = [0, 0];
  const event = (body) => response.write(`data: ${JSON.stringify(body)}\n\n`);
  const write = () => {
    while (sent < Math.min(asked.max_tokens, ((Date.now() - began - 300) / 1e3) * tps)) {
      event({ choices: [{ delta: { content: `${words[sent % words.length]} ` } }], usage: { completion_tokens: ++sent } });
    }
    if (sent < asked.max_tokens) return;
    clearInterval(timer);
    const headway = {
      tier_asked: asked.service_tier,
      tier_served: served,
      reason: served === asked.service_tier ? null : "no_seat",
      tokens_per_second: tps + 0.4,
      floor_tokens_per_second: served === "fast" ? 60 : null,
      kept: served === "fast" ? true : null,
      answer_seconds: (Date.now() - began) / 1e3,
      seat_seconds: 0.61,
      billed_micro: served === "fast" ? 884 : 384,
      refunded_micro: 0,
    };
    event({ choices: [{ delta: {}, finish_reason: "length" }] });
    event({ choices: [], usage: { completion_tokens: sent, headway } });
    response.end("data: [DONE]\n\n");
  };
  timer = setInterval(write, 30);
  response.on("close", () => clearInterval(timer));
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://mock");
  const path = url.pathname;
  if (path === "/console" || path === "/console/") return void file(response, "index.html");
  const named = /^\/console\/([a-z.]+)$/.exec(path);
  if (named) return void file(response, named[1]);
  if (path === "/v1/chat/completions" && request.method === "POST") return void chat(request, response);
  if (path === "/mock/silence") {
    silentUntil = Date.now() + 1e3 * Number(url.searchParams.get("seconds") ?? 10);
    return void answer(response, 200, {});
  }
  if (path.startsWith("/admin/")) return void admin(request, response, path);
  return void fail(response, 404, "There is no such page.");
});
server.listen(Number(options.port), "127.0.0.1", () =>
  console.log(`made-up figures on http://127.0.0.1:${server.address().port}/console#key=mock`),
);
