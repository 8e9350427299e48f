// Streams one question after another, twice each: chunk by chunk and with the stream helper. Prints what the SDK made of it.
// Usage: node wire.mjs BASE_URL, with [{model, question, usage}, …] on standard input.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const tool = { type: "function", function: { name: "get_weather", parameters: { type: "object", properties: {} } } };

function request({ model, question, usage }) {
  const options = usage ? { stream_options: { include_usage: true } } : {};
  return { model, messages: [{ role: "user", content: question }], tools: [tool], ...options };
}

const counts = (usage) => (usage ? [usage.prompt_tokens, usage.completion_tokens] : null);

async function pieces(asked) {
  const seen = { text: "", calls: [], reasons: [], usage: [], names: [], unguarded: true };
  const names = new Set();
  for await (const chunk of await client.chat.completions.create({ ...request(asked), stream: true })) {
    names.add(`${chunk.id} ${chunk.created} ${chunk.model}`);
    if (chunk.usage) seen.usage.push(counts(chunk.usage));
    if (!asked.usage) seen.unguarded &&= chunk.choices[0] !== undefined;
    const choice = chunk.choices[0];
    seen.text += choice?.delta.content ?? "";
    for (const call of choice?.delta.tool_calls ?? []) {
      seen.calls[call.index] ??= [call.function.name, ""];
      seen.calls[call.index][1] += call.function.arguments;
    }
    if (choice?.finish_reason) seen.reasons.push(choice.finish_reason);
  }
  seen.names = [...names].length;
  return seen;
}

async function helper(asked) {
  const final = await client.chat.completions.stream(request(asked)).finalChatCompletion();
  const [choice] = final.choices;
  return {
    text: choice.message.content ?? "",
    calls: (choice.message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    reasons: [choice.finish_reason],
    model: final.model,
  };
}

const found = [];
for (const asked of JSON.parse(readFileSync(0, "utf8"))) {
  found.push({ pieces: await pieces(asked), helper: await helper(asked) });
}
console.log(JSON.stringify(found));
