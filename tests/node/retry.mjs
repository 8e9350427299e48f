// Asks with a short timeout and lets the OpenAI SDK for Node ask again by itself, plain and streamed; prints both answers.
// Usage: node retry.mjs BASE_URL. The expectations are the test's.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 6, timeout: 2000 });

function ask(text) {
  return { model: "auto", messages: [{ role: "user", content: text }] };
}

const plain = await client.chat.completions.create(ask("pay it"));
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...ask("pay it again"), stream: true })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
}
console.log(JSON.stringify({ plain: plain.choices[0].message.content, streamed }));
