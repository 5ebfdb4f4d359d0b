// Bundles static/src into static/dist (not in git). `--watch` rebuilds on change.
import { rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import path from "node:path";
import * as esbuild from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.join(here, "dist");
const watch = process.argv.includes("--watch");

const options = {
  entryPoints: ["app.js", "theme.js", "job.js", "gpus.js", "timeline.js"].map((name) => path.join(here, "src", name)),
  outdir: out,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  minify: !watch,
  legalComments: "none",
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "assets/[name]-[hash]",
  loader: { ".woff": "empty", ".woff2": "file" }, // every browser that runs this reads woff2
  logLevel: "info",
};

if (watch) {
  await (await esbuild.context(options)).watch();
} else {
  rmSync(out, { recursive: true, force: true });
  await esbuild.build(options);
}
