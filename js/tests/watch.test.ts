import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type News, Watcher, messagesOf } from "../src/watch";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** A server with streams written by the test. */
class Server {
  readonly asked: (readonly string[])[] = [];
  readonly signals: AbortSignal[] = [];
  status = 200;
  private readonly streams: ReadableStreamDefaultController<Uint8Array>[] = [];
  readonly open = (ids: readonly string[], signal: AbortSignal): Promise<Response> => {
    this.asked.push(ids);
    this.signals.push(signal);
    const body = new ReadableStream<Uint8Array>({ start: (stream) => void this.streams.push(stream) });
    return Promise.resolve(new Response(body, { status: this.status }));
  };
  send(event: string, data: object): void {
    this.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }
  write(text: string): void {
    this.streams.at(-1)?.enqueue(new TextEncoder().encode(text));
  }
  close(): void {
    this.streams.at(-1)?.close();
  }
}

function watch(...ids: string[]) {
  const server = new Server();
  const watcher = new Watcher(server.open);
  const news: [string, News["kind"]][] = [];
  const ends = ids.map((id) => watcher.watch(id, ({ kind }) => news.push([id, kind])));
  return { server, watcher, news, ends };
}

const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(25);

test("turns drawn together share one stream", async () => {
  const { server, news } = watch("a", "b");
  await settle();
  expect(server.asked).toEqual([["a", "b"]]);
  server.send("state", { id: "b", state: {} });
  await settle();
  expect(news).toEqual([["b", "state"]]);
});

test("a later turn opens a new stream with the live ones", async () => {
  const { server, watcher, news } = watch("a", "b");
  await settle();
  server.send("card", { id: "a", bundle: {} });
  await settle();
  watcher.watch("c", () => {});
  await settle();
  expect(server.asked.at(-1)).toEqual(["b", "c"]);
  expect(server.signals[0]?.aborted).toBe(true);
  expect(news).toEqual([["a", "card"]]);
});

test("without watchers, there is no stream", async () => {
  const { server, ends } = watch("a");
  await settle();
  ends[0]?.();
  await settle();
  expect(server.signals[0]?.aborted).toBe(true);
  expect(server.asked).toHaveLength(1);
});

test("an interrupted stream is opened again", async () => {
  const { server } = watch("a");
  await settle();
  server.close();
  await vi.advanceTimersByTimeAsync(600);
  expect(server.asked).toHaveLength(2);
});

test("a hidden page has no stream", async () => {
  const { server } = watch("a");
  await settle();
  const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
  document.dispatchEvent(new Event("visibilitychange"));
  await settle();
  expect(server.signals[0]?.aborted).toBe(true);
  hidden.mockReturnValue(false);
  document.dispatchEvent(new Event("visibilitychange"));
  await settle();
  expect(server.asked).toHaveLength(2);
  hidden.mockRestore();
});

test("a missing extension is reported once to all", async () => {
  const server = new Server();
  server.status = 404;
  const watcher = new Watcher(server.open);
  const news: string[] = [];
  for (const id of ["a", "b"]) watcher.watch(id, ({ kind }) => news.push(kind));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(news).toEqual(["absent", "absent"]);
  expect(server.asked).toHaveLength(1);
});

test("a message may arrive in pieces, even within a character", async () => {
  const bytes = new TextEncoder().encode('event: state\ndata: {"id":"ü"}\n\n: keep-alive\n\nevent: card\ndata: {}\n\n');
  const body = new ReadableStream<Uint8Array>({
    start(stream) {
      for (const byte of bytes) stream.enqueue(Uint8Array.of(byte));
      stream.close();
    },
  });
  const seen = [];
  for await (const message of messagesOf(body)) seen.push(message);
  expect(seen).toEqual([
    { event: "state", data: '{"id":"ü"}' },
    { event: "card", data: "{}" },
  ]);
});
