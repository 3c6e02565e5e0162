// Runs the other programs against each other, and ends with 1 if anything goes another way than it should.
// Needs a bridge that knows none of their jobs, as `make test-js` starts; NATS_URL says where.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@nats-io/transport-node";

setTimeout(() => { throw new Error("the check takes longer than 110 s"); }, 110_000).unref();
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });

const programs = [];
process.on("exit", () => programs.forEach((p) => p.kill("SIGKILL")));
const seen = []; // lines of all programs
const news = new EventEmitter();
function start(file, ...args) {
  const program = spawn(process.execPath, [file, ...args], { stdio: ["ignore", "pipe", "inherit"] });
  programs.push(program);
  createInterface(program.stdout).on("line", (line) => {
    console.log(`${file} ${program.pid}: ${line}`);
    seen.push({ program, line, at: Date.now() });
    news.emit("line");
  });
  return program;
}

// line waits for the first line that match accepts.
async function line(match) {
  for (;;) {
    const found = seen.find(match);
    if (found) return found;
    await once(news, "line");
  }
}

const says = (program, text) => line((s) => s.program === program && s.line.startsWith(text));

// runs wants a program to end well, and to say these lines.
async function runs(file, args, ...lines) {
  const program = start(file, ...args);
  const [code] = await once(program, "close");
  assert.equal(code, 0, file);
  for (const l of lines) await says(program, l);
}

async function put(target, payload) {
  const answer = (await nc.request(`delay.in.100ms.${target}`, payload, { timeout: 5000 })).json();
  assert.ok(answer.id, answer.error?.description);
  return answer.id;
}

// A producer and a plain worker: a job that is done, one that is retried, one that is dead and gets another chance.
async function plain() {
  const worker = start("plain-worker.mjs", "orders.plain");
  await says(worker, "ready");
  await runs("producer.mjs", ["orders.plain"], "order-17 due ", "reschedule order-18: done", "100 reminders scheduled", "cancel reminder-0: done");
  await says(worker, "order 17 attempt 1: +ACK durable");
  await says(worker, "order 18 attempt 1: -NAK 1s durable");
  await says(worker, "order 18 attempt 2: +ACK durable");
  const id = await put("orders.plain", "");
  await says(worker, " attempt 1: +TERM no order given durable");
  await runs("requeue.mjs", ["orders.>", "no order"], `${id}, dead after attempt 1 (terminated: no order given): done`);
  await says(worker, " attempt 2: +TERM no order given durable");
  worker.kill("SIGTERM");
  assert.deepEqual(await once(worker, "close"), [0, null]);
}

// Of two workers that own their jobs the one that has a job is killed: it is at the other one within a second, on a
// quiet machine; surely before its heartbeats are missed, after 6 s, or its lease is over, after 30 s.
async function killed() {
  for (let i = 0; i < 2; i++) await says(start("worker.mjs", "orders.owned", "1500"), "ready");
  await put("orders.owned", "order 19");
  const first = await line((s) => s.line === "start order 19 attempt 1");
  await sleep(800); // some time into its work
  const at = Date.now();
  first.program.kill("SIGKILL");
  const second = await line((s) => s.line === "start order 19 attempt 2");
  assert.notEqual(second.program, first.program);
  console.log(`at the other worker ${second.at - at} ms after the kill`);
  assert.ok(second.at - at < 5000);
  await line((s) => s.line === "done order 19 durable");
}

await plain();
await killed();
await nc.drain();
process.exit(); // and the workers with it
