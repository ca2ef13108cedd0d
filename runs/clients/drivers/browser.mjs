// A browser: bundles page.mjs, serves it from another origin than the gateway's, and opens it in Chromium.
import { createServer } from "node:http";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const { CHROMIUM, HEADWAY_URL, HEADWAY_KEY, HEADWAY_MODEL, PAGE_ORIGIN } = process.env;
const bundle = await build({
  entryPoints: [new URL("page.mjs", import.meta.url).pathname],
  bundle: true,
  format: "esm",
  write: false,
  define: {
    "process.argv": JSON.stringify(process.argv),
    "process.env": JSON.stringify({ HEADWAY_URL, HEADWAY_KEY, HEADWAY_MODEL }),
  },
});
const server = createServer((request, response) => {
  const isScript = request.url === "/page.js";
  response.setHeader("content-type", isScript ? "text/javascript" : "text/html");
  response.end(isScript ? bundle.outputFiles[0].text : '<!doctype html><script type="module" src="/page.js"></script>');
}).listen(new URL(PAGE_ORIGIN).port);
// As root Chromium does not start with its sandbox.
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
args.push("--disable-component-update", "--disable-sync");
const browser = await chromium.launch({ executablePath: CHROMIUM, args });
const page = await browser.newPage();
try {
  await new Promise((end, fail) => {
    page.on("console", (said) => {
      console.log(said.text());
      if (said.type() === "log") end();
    });
    page.on("pageerror", fail);
    page.goto(PAGE_ORIGIN).catch(fail);
  });
} finally {
  await browser.close();
  server.close();
}
