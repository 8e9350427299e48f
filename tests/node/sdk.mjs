// Drives the OpenAI SDK for Node against a gateway and prints what came of it as one JSON object.
// Usage: node sdk.mjs BASE_URL. The expectations are the test's.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const question = [{ role: "user", content: "what is 12.5% of 18,640?" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const inRome = [{ role: "user", content: "what is the weather in Rome, and in Paris?" }];

async function plain() {
  const got = await client.chat.completions.create({ model: "auto", messages: question });
  return { model: got.model, usage: got.usage, ...got.choices[0] };
}

async function streamed() {
  const stream = await client.chat.completions.create({
    model: "auto",
    messages: question,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return {
    text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
    ids: [...new Set(chunks.map((chunk) => chunk.id))].length,
    roles: chunks.map((chunk) => chunk.choices[0]?.delta.role).filter(Boolean),
    reasons: chunks.map((chunk) => chunk.choices[0]?.finish_reason).filter(Boolean),
    withoutChoices: chunks.filter((chunk) => chunk.choices.length === 0).length,
    usage: chunks.at(-1).usage,
  };
}

async function helper() {
  const stream = client.chat.completions.stream({ model: "auto", messages: inRome, tools: [weather] });
  const done = [];
  stream.on("tool_calls.function.arguments.done", (call) => done.push(call));
  const final = await stream.finalChatCompletion();
  return { done, ...final.choices[0] };
}

async function runTools() {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model: "auto",
    messages: inRome,
    tools: [
      {
        ...weather,
        function: {
          ...weather.function,
          parse: JSON.parse,
          function: ({ city }) => {
            asked.push(city);
            return JSON.stringify({ city, degrees: city.length * 7 });
          },
        },
      },
    ],
  });
  return { text: await runner.finalContent(), asked };
}

async function errors() {
  const seen = {};
  for (const [name, request] of Object.entries({
    unknown: { model: "gpt-nobody", messages: question },
    bad: { model: "auto", messages: [{ role: "robot", content: "x" }] },
  })) {
    try {
      await client.chat.completions.create(request);
    } catch (error) {
      seen[name] = {
        is: [OpenAI.NotFoundError, OpenAI.BadRequestError].find((kind) => error instanceof kind)?.name,
        status: error.status,
        code: error.code,
        param: error.param,
        type: error.type,
        requestID: error.requestID,
      };
    }
  }
  return seen;
}

async function models() {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  return names;
}

const found = {};
for (const step of [plain, streamed, helper, runTools, errors, models]) found[step.name] = await step();
console.log(JSON.stringify(found));
