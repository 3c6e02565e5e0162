// Gives dead jobs another chance: those of a target, or of a pattern, whose reason contains a text are due now.
// Usage: node requeue.mjs TARGET TEXT. NATS_URL says where NATS is, if not at 127.0.0.1:4222.
import { connect } from "@nats-io/transport-node";

const [target, text] = process.argv.slice(2);
if (!text) throw new Error("usage: node requeue.mjs TARGET TEXT");
const nc = await connect({ servers: process.env.NATS_URL ?? "127.0.0.1:4222" });

async function ask(verb, body) {
  const answer = (await nc.request(`delay.api.${verb}`, JSON.stringify(body), { timeout: 6000 })).json();
  if (answer.error) throw new Error(`${verb} is refused with ${answer.error.code}: ${answer.error.description}`);
  return answer;
}

let cursor;
do { // page by page
  const page = await ask("list", { state: "dead", target, cursor });
  for (const job of page.jobs.filter((j) => j.reason.includes(text))) {
    const { result } = await ask("requeue", { id: job.id });
    console.log(`${job.id}, dead after attempt ${job.attempt} (${job.reason}): ${result}`);
  }
  cursor = page.cursor;
} while (cursor);
await nc.drain();
