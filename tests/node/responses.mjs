// Drives the Responses API of the OpenAI SDK for Node against a gateway and prints what came of it as one JSON object.
// Usage: node responses.mjs BASE_URL. The expectations are the test's.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const question = "what is 12.5% of 18,640?";
const weather = {
  type: "function",
  name: "get_weather",
  description: "Weather of a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};

const plain = await client.responses.create({ model: "auto", input: question });

const events = [];
const stream = await client.responses.create({ model: "auto", input: question, stream: true });
for await (const event of stream) events.push(event);

const helper = client.responses.stream({
  model: "auto",
  input: "what is the weather in Rome?",
  tools: [weather],
  tool_choice: "required",
});
const called = await helper.finalResponse();

const id = events[0].response.id;
const rest = [];
const again = await client.responses.retrieve(id, { stream: true, starting_after: 3 });
for await (const event of again) rest.push(event);

const outputs = called.output
  .filter((item) => item.type === "function_call")
  .map((item) => ({ type: "function_call_output", call_id: item.call_id, output: '{"temperature": 21}' }));
const answered = await client.responses.create({
  model: "auto",
  input: outputs,
  previous_response_id: called.id,
  tools: [weather],
});

const conversation = await client.conversations.create({ metadata: { topic: "weather" } });
await client.responses.create({ model: "auto", input: "hello", conversation: conversation.id });
const items = await client.conversations.items.list(conversation.id, { order: "asc" });
await client.responses.delete(plain.id);
let gone = null;
try {
  await client.responses.retrieve(plain.id);
} catch (error) {
  gone = { status: error.status, code: error.code };
}

console.log(
  JSON.stringify({
    plain: { text: plain.output_text, status: plain.status, usage: plain.usage },
    numbers: events.map((event) => event.sequence_number),
    text: events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
    last: events.at(-1).type,
    resumed: rest.map((event) => event.sequence_number),
    calls: called.output.filter((item) => item.type === "function_call"),
    answered: answered.status,
    items: items.data.map((item) => item.role),
    gone,
  }),
);
