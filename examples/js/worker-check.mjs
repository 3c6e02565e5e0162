// Runs two worker.mjs, kills the one that has a job, and wants it at the other within a second. Then ends: with 1 if
// anything went another way. Needs a bridge; NATS_URL says where, if not at 127.0.0.1:4222.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@nats-io/transport-node";

setTimeout(() => { throw new Error("the check takes longer than 30 s"); }, 30_000).unref();
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });
const target = `orders.worker-${Date.now()}`;

const workers = [];
const seen = []; // lines of all workers
async function start() {
  const worker = spawn(process.execPath, ["worker.mjs", target, "1500"], { stdio: ["ignore", "pipe", "inherit"] });
  workers.push(worker);
  createInterface(worker.stdout).on("line", (line) => {
    console.log(`worker ${worker.pid}: ${line}`);
    seen.push({ worker, line, at: Date.now() });
    worker.emit("line");
  });
  await line((s) => s.worker === worker && s.line.startsWith("ready"));
}

// line waits for the first line that match accepts.
async function line(match) {
  for (;;) {
    const found = seen.find(match);
    if (found) return found;
    await Promise.any(workers.map((w) => once(w, "line")));
  }
}

try {
  await start();
  await start();
  const put = (await nc.request(`delay.in.100ms.${target}`, "order 17", { timeout: 2000 })).json();
  assert.ok(put.id);
  const first = await line((s) => s.line === "start order 17 attempt 1");
  await sleep(800); // some time into its work
  const killed = Date.now();
  first.worker.kill("SIGKILL");
  const second = await line((s) => s.line === "start order 17 attempt 2");
  assert.notEqual(second.worker, first.worker);
  console.log(`at the other worker ${second.at - killed} ms after the kill`);
  assert.ok(second.at - killed < 1000);
  await line((s) => s.line === "done order 17 durable");
} finally {
  for (const w of workers) w.kill("SIGKILL");
}
await nc.drain();
