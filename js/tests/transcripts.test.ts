import { beforeEach, expect, test, vi } from "vitest";
import type { Piece, PieceKind, Transcript } from "../src/panel-types";
import { makeTranscripts } from "../src/transcripts";
import { RUNNING } from "./mock";

const piece = (kind: PieceKind, text: string, id: string = kind, title = ""): Piece => ({ id, kind, title, text });

let run = 0;

/** Open an agent to whom these pieces come, one lot for each read. */
async function open(...lots: Piece[][]) {
  const read = vi.fn(async (_agent: string, after: number): Promise<Transcript> => ({ pieces: lots[after] ?? [], end: after + 1, more: after + 1 < lots.length }));
  const life = new AbortController();
  const transcripts = makeTranscripts(life.signal, read);
  document.body.append(transcripts.el);
  const state = { ...RUNNING, run: `run-${++run}` };
  transcripts.draw(state);
  transcripts.toggle("critic");
  await vi.waitFor(() => expect(read).toHaveBeenCalledTimes(Math.max(1, lots.length)));
  await Promise.resolve();
  return { ...transcripts, read, state, parts: () => [...transcripts.el.querySelectorAll<HTMLElement>(".part")] };
}

beforeEach(() => document.body.replaceChildren());

test("an agent that is closed is never asked for", async () => {
  const read = vi.fn();
  const transcripts = makeTranscripts(new AbortController().signal, read);
  transcripts.draw({ ...RUNNING, run: "closed" });
  expect(read).not.toHaveBeenCalled();
  expect(transcripts.el.hidden).toBe(true);
});

test("words that come later go on in their part", async () => {
  const { parts } = await open([piece("text", "I com")], [piece("text", "pare.")]);
  expect(parts().map((part) => part.querySelector(".body")?.textContent)).toEqual(["I compare."]);
});

test("an answer takes the place of the words that it was written in", async () => {
  const { parts } = await open([piece("text", "Use mmap."), piece("writing", "Use mm"), piece("answer", "Use mmap.", "a 1", "Answer")]);
  expect(parts().map((part) => part.className)).toEqual(["part answer"]);
});

test("HTML in an agent's words is text", async () => {
  const { el } = await open([piece("text", "<img src=x onerror=alert(1)>")]);
  expect(el.querySelector("img")).toBeNull();
  expect(el.textContent).toContain("<img src=x");
});

test("a long text is laid out in blocks, and no word of it is lost", async () => {
  const text = "one line of words\n".repeat(20_000);
  const { parts } = await open([piece("text", text)]);
  const blocks = [...(parts()[0]?.querySelectorAll(".block") ?? [])];
  expect(blocks.length).toBeGreaterThan(50);
  expect(blocks.map((block) => block.textContent).join("\n")).toBe(text);
});

test("why a transcript can't be read is said", async () => {
  const transcripts = makeTranscripts(new AbortController().signal, () => Promise.reject(new Error("the kernel is busy.")));
  document.body.append(transcripts.el);
  transcripts.draw({ ...RUNNING, run: "busy" });
  transcripts.toggle("critic");
  await vi.waitFor(() => expect(transcripts.el.textContent).toContain("can't be read: the kernel is busy."));
});
