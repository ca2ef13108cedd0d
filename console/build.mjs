// Writes headway/console/page: the same bytes for the same sources and the same package-lock.json.

import { build } from "esbuild";
import { copyFile, mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "..", "headway", "console", "page");

/** The text of the licence of each package whose code is in the bundle. */
async function licences(inputs) {
  const packages = new Set();
  for (const path of Object.keys(inputs)) {
    const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) packages.add(found[1]);
  }
  const parts = ["The console contains these packages, each under its own licence.\n"];
  for (const name of [...packages].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((one) => /^licen[cs]e(\.|$)/i.test(one));
    if (!file) throw new Error(`${name} has no licence file`);
    parts.push(`${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return parts.join(`\n${"-".repeat(80)}\n\n`);
}

await mkdir(page, { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx" },
  outdir: page,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none", // licences.txt has them
  jsx: "automatic",
  jsxImportSource: "preact",
  metafile: true,
  logLevel: "warning",
});
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/console.css" },
  outdir: page,
  minify: true,
  // As written: older browsers get no second copy of each rule.
  target: "esnext",
  charset: "utf8",
  logLevel: "warning",
});
await copyFile(join(here, "src", "index.html"), join(page, "index.html"));
await writeFile(join(page, "licences.txt"), await licences(result.metafile.inputs));
