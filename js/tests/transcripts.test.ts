import { beforeEach, expect, test, vi } from "vitest";
import type { PanelState, Piece, PieceKind, Transcript } from "../src/panel-types";
import { makeTranscripts } from "../src/transcripts";
import { RUNNING, show } from "./mock";

const piece = (kind: PieceKind, text: string, id: string = kind, title = ""): Piece => ({ id, kind, title, text });

let run = 0;

/** Open an agent's transcript that receives these pieces, one list per request. */
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

/** Show a panel with closed rows. */
function showPanel() {
  const { el, model } = show({ ...RUNNING, run: `run-${++run}` });
  return { el, update: (state: PanelState) => model.update({ ...state, run: `run-${run}` }) };
}

function press(el: HTMLElement, name: string): void {
  const buttons = [...el.querySelectorAll<HTMLElement>("tbody button.open")];
  buttons.find((button) => button.textContent === name)?.click();
}

beforeEach(() => document.body.replaceChildren());

test("the transcript of a closed agent is not requested", async () => {
  const read = vi.fn();
  const transcripts = makeTranscripts(new AbortController().signal, read);
  transcripts.draw({ ...RUNNING, run: "closed" });
  expect(read).not.toHaveBeenCalled();
  expect(transcripts.el.hidden).toBe(true);
});

test("later text is appended to its part", async () => {
  const { parts } = await open([piece("text", "I com")], [piece("text", "pare.")]);
  expect(parts().map((part) => part.querySelector(".body")?.textContent)).toEqual(["I compare."]);
});

test("an answer replaces its streamed text", async () => {
  const { parts } = await open([piece("text", "Use mmap."), piece("writing", "Use mm"), piece("answer", "Use mmap.", "a 1", "Answer")]);
  expect(parts().map((part) => part.className)).toEqual(["part answer"]);
});

test("HTML in an agent's text is shown as text", async () => {
  const { el } = await open([piece("text", "<img src=x onerror=alert(1)>")]);
  expect(el.querySelector("img")).toBeNull();
  expect(el.textContent).toContain("<img src=x");
});

test("a long text is split into blocks without losses", async () => {
  const text = "one line of words\n".repeat(20_000);
  const { parts } = await open([piece("text", text)]);
  const blocks = [...(parts()[0]?.querySelectorAll(".block") ?? [])];
  expect(blocks.length).toBeGreaterThan(50);
  expect(blocks.map((block) => block.textContent).join("\n")).toBe(text);
});

test("an error of a transcript is shown", async () => {
  const transcripts = makeTranscripts(new AbortController().signal, () => Promise.reject(new Error("the kernel is busy.")));
  document.body.append(transcripts.el);
  transcripts.draw({ ...RUNNING, run: "busy" });
  transcripts.toggle("critic");
  await vi.waitFor(() => expect(transcripts.el.textContent).toContain("can't be read: the kernel is busy."));
});

test("the open text is below its own row, and Close, Wide and Answers only are in one line", () => {
  const { el, update } = showPanel();
  press(el, "critic");
  const row = el.querySelector("tr.below");
  expect(row?.previousElementSibling?.textContent).toContain("critic");
  expect(row?.querySelector(".top")?.textContent).toBe("criticAnswers onlyWideClose");
  update({ ...RUNNING, run: "below", agents: [...RUNNING.agents].reverse() });
  expect(el.querySelector("tr.below")?.previousElementSibling?.textContent).toContain("critic");
  press(el, "critic");
  expect(el.querySelector("tr.below")).toBeNull();
});

test("wide texts are side by side below all rows", () => {
  const { el } = showPanel();
  press(el, "critic");
  press(el, "researcher");
  expect(el.querySelectorAll("tr.below")).toHaveLength(2);
  [...el.querySelectorAll("button")].find((button) => button.textContent === "Wide")?.click();
  expect(el.querySelector("tr.below")).toBeNull();
  expect(el.querySelectorAll(".reading.wide .columns > .agent")).toHaveLength(2);
  [...el.querySelectorAll("button")].find((button) => button.textContent === "Wide")?.click();
  expect(el.querySelectorAll("tr.below .agent")).toHaveLength(2);
});
