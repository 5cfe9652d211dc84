// Asks a gateway everything of the suite with the openai client, and prints what it saw: node suite.mjs URL TAG.
// See suite.py, which prints the same.

import OpenAI from "openai";

const [url, tag] = process.argv.slice(2);
const model = "scripted";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const schema = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};

const baseURL = url + "/v1";
const once = new OpenAI({ baseURL, maxRetries: 0 });
const patient = new OpenAI({ baseURL, maxRetries: 4 });
const stranger = new OpenAI({ baseURL, apiKey: "nobody", maxRetries: 0 });

const say = (word) => ({ model, messages: [{ role: "user", content: `${tag} ${word}` }] });
const ask = (word, more) => once.chat.completions.create({ ...say(word), ...more });
const counts = (u) => [u.prompt_tokens, u.completion_tokens, u.prompt_tokens_details.cached_tokens];

async function chat() {
  const choice = (await ask("chat")).choices[0];
  return { text: choice.message.content, finish: choice.finish_reason };
}

async function stream() {
  let text = "", usage, chunks = 0;
  for await (const event of await ask("stream", { stream: true, stream_options: { include_usage: true } })) {
    chunks++;
    text += event.choices[0]?.delta.content ?? "";
    usage = event.usage ?? usage;
  }
  return { text, usage: counts(usage), several: chunks > 2 };
}

async function calledTool() {
  const call = (await ask("tools", { tools, tool_choice: "required" })).choices[0].message.tool_calls[0];
  return { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
}

async function streamedTool() {
  let name = "", args = "";
  for await (const event of await ask("tools", { tools, tool_choice: "required", stream: true })) {
    for (const call of event.choices[0].delta.tool_calls ?? []) {
      name += call.function.name ?? "";
      args += call.function.arguments ?? "";
    }
  }
  return { name, arguments: JSON.parse(args) };
}

async function structured() {
  const format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema } };
  return JSON.parse((await ask("structured", { response_format: format })).choices[0].message.content);
}

async function models() {
  const ids = [];
  for await (const m of once.models.list()) ids.push(m.id);
  return ids;
}

async function refused(asked) {
  try {
    await asked;
  } catch (e) {
    if (!(e instanceof OpenAI.APIError) || !e.status) throw e;
    return { status: e.status, type: e.type, reason: e.headers.get("x-pdrouter-reason") ?? "" };
  }
  return "answered";
}

async function timeout() {
  try {
    await once.chat.completions.create(say("hang"), { timeout: 1000 });
  } catch (e) {
    if (!(e instanceof OpenAI.APIConnectionTimeoutError)) throw e;
    return "timeout";
  }
  return "answered";
}

async function cancel() {
  const events = await ask("endless", { stream: true });
  for await (const event of events) {
    events.controller.abort();
    return event.choices[0].delta.content;
  }
}

async function cut() {
  let text = "";
  try {
    for await (const event of await ask("cut", { stream: true })) text += event.choices[0].delta.content ?? "";
  } catch {
    return { text, error: true };
  }
  return { text, error: false };
}

console.log(JSON.stringify({
  chat: await chat(),
  completion: (await once.completions.create({ model, prompt: `${tag} completion` })).choices[0].text,
  stream: await stream(),
  tools: await calledTool(),
  tools_stream: await streamedTool(),
  structured: await structured(),
  usage: counts((await ask("chat")).usage),
  models: await models(),
  bad_request: await refused(ask("reject")),
  not_found: await refused(ask("chat", { model: "nothing" })),
  unauthorized: await refused(stranger.chat.completions.create(say("chat"))),
  busy: await refused(ask("busy")),
  retried: (await patient.chat.completions.create(say("soon"))).choices[0].message.content,
  timeout: await timeout(),
  cancel: await cancel(),
  cut: await cut(),
}));
