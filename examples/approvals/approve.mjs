// Deletes an order through the gateway, with OpenAI's SDK for Node as it is and the Responses API: ask, approve, go on.
//
//   node examples/approvals/approve.mjs http://127.0.0.1:8080/v1
//
// The approval is given as an approver would at a terminal: `hermes-gateway approvals approve ID --code CODE`.
import { execFileSync } from "node:child_process";
import OpenAI from "openai";

const [baseURL = "http://127.0.0.1:8080/v1", command = "hermes-gateway", question = "delete the order SO-2024-0427"] =
  process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "any" });
const [program, ...options] = command.split(" ");

function approvals(...words) {
  return JSON.parse(execFileSync(program, [...options, "approvals", ...words, "--json"], { encoding: "utf8" }));
}

const pending = await client.responses.create({ model: "auto", input: question });
console.log(pending.output_text);

const request = pending.output.find((item) => item.type === "mcp_approval_request");
const { code } = approvals("show", request.id);
const approved = approvals("approve", request.id, "--code", code, "--reason", "asked for by phone");
console.log(`${request.id} is ${approved.status}, by ${approved.decided_by}`);

const answer = await client.responses.create({ model: "auto", input: "go on", previous_response_id: pending.id });
console.log(answer.output_text);
