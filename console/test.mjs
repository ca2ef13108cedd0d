// Bundles the tests, because Node.js does not read TypeScript at every version that we build with, and runs them.

import { build } from "esbuild";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { spawnSync } from "node:child_process";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = await mkdtemp(join(tmpdir(), "headway-console-"));
try {
  const tests = (await readdir(join(here, "test"))).filter((name) => name.endsWith(".test.ts")).sort();
  await build({
    absWorkingDir: join(here, "test"),
    entryPoints: tests,
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    logLevel: "warning",
  });
  const built = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
  process.exitCode = spawnSync(process.execPath, ["--test", ...built], { stdio: "inherit" }).status ?? 1;
} finally {
  await rm(out, { recursive: true });
}
