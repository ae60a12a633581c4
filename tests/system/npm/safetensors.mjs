// safetensors.mjs MILLRACE DIRECTORY: the reader of @huggingface/hub finds in a file that Millrace has written what was
// loaded. The directory is empty; the file goes through a pool in it.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { parseSafetensorsMetadata } from "@huggingface/hub";

const [millrace, directory] = process.argv.slice(2);
const checkpoints = (...words) =>
  execFileSync(millrace, ["checkpoints", ...words, "--pool", `${directory}/pool`], { stdio: ["ignore", "ignore", "inherit"] });

// Every dtype of the format, narrow ones first, so that Millrace has to put the tensors in another order.
const bits = { F4: 4, F6_E2M3: 6, F6_E3M2: 6, BOOL: 8, U8: 8, I8: 8, F8_E5M2: 8, F8_E4M3: 8, F8_E8M0: 8, I16: 16, U16: 16,
  F16: 16, BF16: 16, I32: 32, U32: 32, F32: 32, C64: 64, F64: 64, I64: 64, U64: 64 };
const tensors = Object.keys(bits).map((dtype) => ({ name: `layer.${dtype}`, dtype, shape: [3, 4, 2] }));
tensors.push({ name: "größe", dtype: "I64", shape: [2] }, { name: "none", dtype: "F32", shape: [0, 3] },
  { name: "scalar", dtype: "F32", shape: [] }, { name: "wide", dtype: "F64", shape: [5, 2] });
// Of `wide` Millrace makes C128, which the format does not have, and from that F64 again.
const metadata = { git: "1f3c", "millrace.dtype.wide": "C128" };
const count = ({ shape }) => shape.reduce((a, b) => a * b, 1);

const header = { __metadata__: metadata };
let end = 0;
for (const t of tensors) {
  t.bytes = Buffer.from(Array.from({ length: (count(t) * bits[t.dtype]) / 8 }, (_, i) => (t.dtype === "BOOL" ? i % 2 : 3 * i + end)));
  header[t.name] = { dtype: t.dtype, shape: t.shape, data_offsets: [end, (end += t.bytes.length)] };
}
const table = Buffer.from(JSON.stringify(header));
const length = Buffer.alloc(8);
length.writeBigUInt64LE(BigInt(table.length));
writeFileSync(`${directory}/in.safetensors`, Buffer.concat([length, table, ...tensors.map((t) => t.bytes)]));

execFileSync(millrace, ["pool", "create", `${directory}/pool`, "--size", "16MiB"], { stdio: ["ignore", "ignore", "inherit"] });
checkpoints("load", `${directory}/in.safetensors`, "--model", "m", "--step", "7");
checkpoints("dump", "m@7", `${directory}/model.safetensors`);
const file = readFileSync(`${directory}/model.safetensors`);

// A repository with this file alone, which gives ranges of it as a server does.
async function serve(url, { method, headers } = {}) {
  if (!String(url).endsWith("/model.safetensors")) return new Response(null, { status: 404, headers: { "x-error-code": "EntryNotFound" } });
  if (method === "HEAD") return new Response(null, { headers: { "content-length": file.length } });
  const [, first, last] = /^bytes=(\d+)-(\d+)$/.exec(new Headers(headers).get("range"));
  const range = `bytes ${first}-${Math.min(last, file.length - 1)}/${file.length}`;
  return new Response(file.subarray(first, Number(last) + 1), { status: 206, headers: { "content-range": range, etag: '"1"' } });
}
const found = await parseSafetensorsMetadata({ repo: "millrace/m", computeParametersCount: true, fetch: serve });

assert.equal(found.sharded, false);
const { __metadata__: says, ...stored } = found.header;
assert.deepEqual(says, { ...metadata, "millrace.model": "m", "millrace.step": "7", "millrace.rank": "0", "millrace.world_size": "1" });
assert.deepEqual(Object.keys(stored).sort(), tensors.map((t) => t.name).sort());
const start = 8 + Number(file.readBigUInt64LE());
for (const t of tensors) {
  const { dtype, shape, data_offsets: at } = stored[t.name];
  assert.deepEqual({ dtype, shape }, { dtype: t.dtype, shape: t.shape }, t.name);
  assert.deepEqual(file.subarray(start + at[0], start + at[1]), t.bytes, t.name);
  assert.equal((start + at[0]) % Math.ceil(bits[dtype] / 8), 0, `${t.name} is not aligned`);
}
// That reader counts neither scalars nor exponents alone, which scale other tensors.
const parameters = {};
for (const t of tensors)
  if (t.shape.length > 0 && t.dtype !== "F8_E8M0") parameters[t.dtype] = (parameters[t.dtype] ?? 0) + count(t);
assert.deepEqual(found.parameterCount, parameters);
console.log(`${tensors.length} tensors in ${Object.keys(bits).length} dtypes, ${file.length} bytes`);
