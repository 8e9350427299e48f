// Streams from a gateway whose upstream breaks off, and prints what the SDK made of it as one JSON object.
// Usage: node broken.mjs BASE_URL
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const found = { text: "" };
try {
  const stream = await client.chat.completions.create({
    model: "m",
    messages: [{ role: "user", content: "x" }],
    stream: true,
  });
  for await (const chunk of stream) found.text += chunk.choices[0].delta.content ?? "";
} catch (error) {
  found.isApiError = error instanceof OpenAI.APIError;
  found.message = error.message;
}
console.log(JSON.stringify(found));
