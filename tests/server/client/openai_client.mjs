// The official OpenAI client against a running server: node openai_client.mjs BASE_URL MODEL
// Every step prints its name; the first one that fails ends the run with exit code 1.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const [baseUrl, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: 'not-needed', maxRetries: 0 });

const question = {
  model,
  messages: [
    { role: 'system', content: 'You are a helpful assistant.' },
    { role: 'user', content: 'What is the capital of France?' },
  ],
  max_tokens: 40,
  temperature: 0,
  enable_thinking: false,
};
const counting = {
  model,
  messages: [{ role: 'user', content: 'Count from 1 to 2000, one per line.' }],
  max_tokens: 3000,
  temperature: 0,
  enable_thinking: false,
};

// All chunks of a stream, with the text fields joined.
async function collect(stream) {
  const out = { chunks: [], content: '', reasoning: '', finish: null, usage: null, flashlane: null };
  for await (const chunk of stream) {
    out.chunks.push(chunk);
    if (chunk.usage) out.usage = chunk.usage;
    if (chunk.flashlane) out.flashlane = chunk.flashlane;
    const choice = chunk.choices[0];
    if (!choice) continue;
    out.content += choice.delta?.content ?? choice.text ?? '';
    out.reasoning += choice.delta?.reasoning_content ?? '';
    if (choice.finish_reason) out.finish = choice.finish_reason;
  }
  return out;
}

async function rejected(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail('the request should have been refused');
}

const steps = {
  async 'models'() {
    const ids = [];
    for await (const entry of client.models.list()) ids.push(entry.id);
    assert.ok(ids.includes(model), `${model} is not among ${ids}`);
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async 'chat, whole'() {
    const reply = await client.chat.completions.create(question);
    assert.equal(reply.object, 'chat.completion');
    assert.equal(reply.choices[0].message.role, 'assistant');
    assert.match(reply.choices[0].message.content, /Paris/);
    assert.equal(reply.choices[0].finish_reason, 'stop');
    assert.ok(reply.usage.prompt_tokens > 10);
    assert.equal(reply.usage.total_tokens,
                 reply.usage.prompt_tokens + reply.usage.completion_tokens);
    assert.match(reply.flashlane.token_sha, /^[0-9a-f]{64}$/);
  },

  async 'chat, streamed, equals the whole reply'() {
    const whole = await client.chat.completions.create(question);
    const streamed = await collect(await client.chat.completions.create(
        { ...question, stream: true, stream_options: { include_usage: true } }));
    assert.equal(streamed.chunks[0].choices[0].delta.role, 'assistant');
    assert.equal(streamed.content, whole.choices[0].message.content);
    assert.equal(streamed.finish, 'stop');
    assert.equal(streamed.flashlane.token_sha, whole.flashlane.token_sha);
    const last = streamed.chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert.deepEqual(last.usage, whole.usage);
  },

  async 'chat, the stream helper'() {
    const stream = client.chat.completions.stream(question);
    let text = '';
    stream.on('content', (delta) => { text += delta; });
    const final = await stream.finalChatCompletion();
    assert.match(text, /Paris/);
    assert.equal(final.choices[0].message.content, text);
  },

  async 'reasoning is split from content'() {
    const thinking = {
      model,
      messages: [{ role: 'user', content: 'What is 7 + 8?' }],
      max_tokens: 200,
      temperature: 0,
      enable_thinking: true,
    };
    const whole = await client.chat.completions.create(thinking);
    const message = whole.choices[0].message;
    assert.ok(message.reasoning_content.length > 0);
    assert.ok(message.content.length > 0);
    assert.doesNotMatch(message.reasoning_content + message.content, /<\/?think>/);
    assert.ok(whole.usage.completion_tokens_details.reasoning_tokens > 0);
    const streamed = await collect(await client.chat.completions.create(
        { ...thinking, stream: true }));
    assert.equal(streamed.reasoning, message.reasoning_content);
    assert.equal(streamed.content, message.content);
    // Asked again, all but the prompt's last token is there already.
    assert.equal(whole.usage.prompt_tokens_details.cached_tokens, 0);
    assert.deepEqual(streamed.usage, {
      ...whole.usage,
      prompt_tokens_details: { cached_tokens: whole.usage.prompt_tokens - 1 },
    });
  },

  async 'text completion, whole and streamed'() {
    const request = { model, prompt: 'def add(a, b):\n', max_tokens: 24, temperature: 0 };
    const whole = await client.completions.create(request);
    assert.equal(whole.object, 'text_completion');
    assert.ok(whole.choices[0].text.length > 0);
    assert.equal(whole.choices[0].finish_reason, 'length');
    assert.equal(whole.usage.completion_tokens, 24);
    const streamed = await collect(await client.completions.create({ ...request, stream: true }));
    assert.equal(streamed.content, whole.choices[0].text);
  },

  async 'a stop string ends the text before it'() {
    const request = { ...counting, max_tokens: 100 };
    const long = await client.chat.completions.create(request);
    const text = long.choices[0].message.content;
    const stop = text.slice(20, 23);
    const cut = await client.chat.completions.create({ ...request, stop: [stop] });
    assert.equal(cut.choices[0].finish_reason, 'stop');
    assert.equal(cut.choices[0].message.content, text.slice(0, text.indexOf(stop)));
  },

  async 'seeded replies repeat, with and without drafts'() {
    const request = { ...counting, temperature: 0.8, seed: 42, max_tokens: 60 };
    const first = await client.chat.completions.create(request);
    const second = await client.chat.completions.create(request);
    const plain = await client.chat.completions.create({ ...request, draft: false });
    assert.equal(second.flashlane.token_sha, first.flashlane.token_sha);
    assert.equal(plain.flashlane.token_sha, first.flashlane.token_sha);
    assert.equal(plain.flashlane.drafts.drafted, 0);
  },

  async 'an unknown model is a 404 that names it'() {
    const error = await rejected(client.chat.completions.create({ ...question, model: 'gpt-9' }));
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, 'model_not_found');
    assert.match(error.message, /gpt-9/);
  },

  async 'a field that is not built is a 400 that names it'() {
    const error = await rejected(client.chat.completions.create({
      ...question,
      tools: [{ type: 'function', function: { name: 'now', parameters: {} } }],
    }));
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'tools');
  },

  async 'a prompt that is too long is a 400 with both counts'() {
    const error = await rejected(client.chat.completions.create(
        { ...question, max_tokens: 10_000_000, stream: true }));
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, 'context_length_exceeded');
    assert.match(error.message, /10000000/);
  },

  async 'an abort in mid-stream frees the engine'() {
    const stream = await client.chat.completions.create({ ...counting, stream: true });
    let chunks = 0;
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      if (++chunks === 5) break;  // leaving the loop closes the connection
    }
    const until = Date.now() + 5000;
    let status;
    do {
      await new Promise((resolve) => { setTimeout(resolve, 20); });
      status = await (await fetch(`${baseUrl}/status`)).json();
    } while (status.running > 0 && Date.now() < until);
    assert.equal(status.running, 0, 'the reply still runs 5 s after its client left');
    const next = await client.chat.completions.create(question);
    assert.match(next.choices[0].message.content, /Paris/);
  },
};

for (const [name, step] of Object.entries(steps)) {
  try {
    await step();
    console.log(`ok   ${name}`);
  } catch (error) {
    console.log(`FAIL ${name}`);
    console.log(error);
    process.exit(1);
  }
}
console.log(`${Object.keys(steps).length} steps passed with openai, Node ${process.version}`);
