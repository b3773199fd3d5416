import { describe, expect, it, vi } from "vitest";

vi.mock("@jupyterlab/apputils", () => ({
  Dialog: { cancelButton: vi.fn(), okButton: vi.fn() },
  showDialog: vi.fn(),
}));
vi.mock("@lumino/widgets", () => ({
  Widget: class {
    readonly node = document.createElement("div");
    addClass(name: string): void {
      this.node.classList.add(name);
    }
  },
}));

import { showDialog } from "@jupyterlab/apputils";
import { type Preview, RewindBody, chooseRewind } from "../src/rewind";

const POINTS = [
  { seq: 1, at: 100, agent: "", says: "the start" },
  { seq: 9, at: 130, agent: "ben", says: "ben's 1st answer" },
  { seq: 12, at: 171, agent: "ada", says: "<b>ada</b>'s 1st vote" },
];

function preview(more: Partial<Preview> = {}): Preview {
  return { point: 9, points: POINTS, lines: ["Kept."], files: [], file_count: 0, kept: { recipe: null }, status: "complete", ...more };
}

const CHANGE = { path: "a/notes.md", what: "changed", plus: 1, minus: 2, diff: "+new\n-old\n-older" } as const;

describe("rewinding", () => {
  it("shows the checkpoints with their times, the chosen one, and changes of files", () => {
    const body = new RewindBody(vi.fn(), preview({ files: [CHANGE], file_count: 1 }));
    const options = [...body.node.querySelectorAll("[role=option]")];
    expect(options.map((row) => row.textContent)).toEqual(["the start+0:00", "ben's 1st answer+0:30", "<b>ada</b>'s 1st vote+1:11"]);
    expect(body.node.querySelector("[aria-selected=true]")?.textContent).toContain("ben's");
    expect(body.node.querySelector(".head")?.textContent).toBe("1 file will change:");
    expect(body.node.querySelector("summary")?.textContent).toBe("a/notes.md+1−2will be reverted");
    expect([...body.node.querySelectorAll("pre .minus")]).toHaveLength(2);
    expect(body.node.querySelector("b")).toBeNull();
  });

  it("shows the first words of answers", () => {
    const points = [{ ...POINTS[0]!, text: "" }, { ...POINTS[1]!, text: "Use <i>mmap</i>." }];
    const words = [...new RewindBody(vi.fn(), preview({ points })).node.querySelectorAll<HTMLElement>(".words")];
    expect(words.map((each) => [each.hidden, each.textContent])).toEqual([[true, ""], [false, "Use <i>mmap</i>."]]);
  });

  it("preselects a checkpoint that undoes something, unless one was pressed", async () => {
    const look = vi.fn((_: string) => Promise.resolve(preview()));
    const shown = vi.mocked(showDialog);
    shown.mockResolvedValue({ button: { accept: false } } as never);
    await chooseRewind(look);
    expect(look.mock.calls.map(([to]) => to)).toEqual(["the end", "9"]);
    look.mockClear();
    await chooseRewind(look, 12);
    expect(look.mock.calls.map(([to]) => to)).toEqual(["12"]);
    expect(shown.mock.calls[0]?.[0]).toMatchObject({ title: "Go back" });
  });

  it("is usable by keyboard, and shows the last choice in any order of replies", async () => {
    const answers: ((found: Preview) => void)[] = [];
    const look = vi.fn((_: string) => new Promise<Preview>((resolve) => answers.push(resolve)));
    const body = new RewindBody(look, preview());
    const list = body.node.querySelector("ul");
    for (const key of ["ArrowDown", "Home"]) list?.dispatchEvent(new KeyboardEvent("keydown", { key }));
    expect(look.mock.calls.map(([to]) => to)).toEqual(["12", "1"]);
    answers[1]?.(preview({ lines: ["The first."] }));
    answers[0]?.(preview({ lines: ["Too late."] }));
    await Promise.resolve();
    await Promise.resolve();
    expect(body.node.querySelector(".says")?.textContent).toBe("The first.");
    expect(list?.getAttribute("aria-activedescendant")).toBe("nba-point-1");
    expect(body.getValue()).toEqual({ to: "1", say: "" });
  });

  it("accepts a message to one agent or to all", () => {
    const body = new RewindBody(vi.fn(), preview());
    const [word, to] = [body.node.querySelector("textarea"), body.node.querySelector("select")];
    if (!word || !to) throw new Error("no word can be said");
    expect([...to.options].map((option) => option.value)).toEqual(["", "ben", "ada"]);
    word.value = " Think of the cost. ";
    expect(body.getValue()).toEqual({ to: "9", say: "Think of the cost." });
    to.value = "ben";
    expect(body.getValue()).toEqual({ to: "9", say: "Think of the cost.", agent: "ben" });
  });

  it("starts the chosen number of turns, one by default", () => {
    const body = new RewindBody(vi.fn(), preview());
    const times = body.node.querySelector<HTMLInputElement>("input[type=number]");
    if (!times) throw new Error("nobody can say how often");
    expect(times.closest("label")?.textContent).toBe("Try it  times");
    expect(body.getValue()).toEqual({ to: "9", say: "" });
    const said = ["5", "1000", "", "-3"].map((value) => {
      times.value = value;
      return body.getValue().times;
    });
    expect(said).toEqual([5, 100, undefined, undefined]);
  });

  it("asks how to stop only for a live turn", () => {
    const label = (body: RewindBody) => body.node.querySelector("input[type=checkbox]")?.closest("label");
    expect(label(new RewindBody(vi.fn(), preview()))?.hidden).toBe(true);
    const body = new RewindBody(vi.fn(), preview({ status: "running" }));
    expect(label(body)?.hidden).toBe(false);
    expect(body.getValue()).toEqual({ to: "9", say: "" });
    body.node.querySelector<HTMLInputElement>("input[type=checkbox]")?.click();
    expect(body.getValue()).toEqual({ to: "9", say: "", now: true });
  });

  it("shows why a checkpoint can't be previewed", async () => {
    const body = new RewindBody(vi.fn().mockRejectedValue(new Error("It is gone.")), preview());
    body.node.querySelector("ul")?.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
    await new Promise((resolve) => setTimeout(resolve));
    expect(body.node.querySelector(".says")?.textContent).toBe("It is gone.");
  });
});
