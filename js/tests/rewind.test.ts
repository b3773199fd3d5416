import { describe, expect, it, vi } from "vitest";

vi.mock("@jupyterlab/apputils", () => ({ Dialog: {}, showDialog: vi.fn() }));
vi.mock("@lumino/widgets", () => ({
  Widget: class {
    readonly node = document.createElement("div");
    addClass(name: string): void {
      this.node.classList.add(name);
    }
  },
}));

import { type Preview, RewindBody } from "../src/rewind";

const POINTS = [
  { seq: 1, at: 100, agent: "", says: "the start" },
  { seq: 9, at: 130, agent: "ben", says: "ben's 1st answer" },
  { seq: 12, at: 171, agent: "ada", says: "<b>ada</b>'s 1st vote" },
];

function preview(more: Partial<Preview> = {}): Preview {
  return { point: 9, points: POINTS, lines: ["Kept."], files: [], file_count: 0, kept: { recipe: null }, status: "complete", ...more };
}

const CHANGE = { path: "a/notes.md", what: "changed", plus: 1, minus: 2, diff: "+new\n-old\n-older" } as const;

describe("going back", () => {
  it("shows the points with their times, the one that was chosen, and what becomes of files", () => {
    const body = new RewindBody(vi.fn(), preview({ files: [CHANGE], file_count: 1 }));
    const options = [...body.node.querySelectorAll("[role=option]")];
    expect(options.map((row) => row.textContent)).toEqual(["the start+0:00", "ben's 1st answer+0:30", "<b>ada</b>'s 1st vote+1:11"]);
    expect(body.node.querySelector("[aria-selected=true]")?.textContent).toContain("ben's");
    expect(body.node.querySelector(".head")?.textContent).toBe("1 file will be different:");
    expect(body.node.querySelector("summary")?.textContent).toBe("a/notes.md+1−2is as it was");
    expect([...body.node.querySelectorAll("pre .minus")]).toHaveLength(2);
    expect(body.node.querySelector("b")).toBeNull();
  });

  it("is chosen by keyboard alone, and the last choice is shown whatever order the answers have", async () => {
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

  it("takes a word to one agent or to all", () => {
    const body = new RewindBody(vi.fn(), preview());
    const [word, to] = [body.node.querySelector("textarea"), body.node.querySelector("select")];
    if (!word || !to) throw new Error("no word can be said");
    expect([...to.options].map((option) => option.value)).toEqual(["", "ben", "ada"]);
    word.value = " Think of the cost. ";
    expect(body.getValue()).toEqual({ to: "9", say: "Think of the cost." });
    to.value = "ben";
    expect(body.getValue()).toEqual({ to: "9", say: "Think of the cost.", agent: "ben" });
  });

  it("tries it as often as a person says, and once by default", () => {
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

  it("asks how a live turn is stopped first, and that alone", () => {
    const label = (body: RewindBody) => body.node.querySelector("input[type=checkbox]")?.closest("label");
    expect(label(new RewindBody(vi.fn(), preview()))?.hidden).toBe(true);
    const body = new RewindBody(vi.fn(), preview({ status: "running" }));
    expect(label(body)?.hidden).toBe(false);
    expect(body.getValue()).toEqual({ to: "9", say: "" });
    body.node.querySelector<HTMLInputElement>("input[type=checkbox]")?.click();
    expect(body.getValue()).toEqual({ to: "9", say: "", now: true });
  });

  it("says why a point can't be looked at", async () => {
    const body = new RewindBody(vi.fn().mockRejectedValue(new Error("It is gone.")), preview());
    body.node.querySelector("ul")?.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
    await new Promise((resolve) => setTimeout(resolve));
    expect(body.node.querySelector(".says")?.textContent).toBe("It is gone.");
  });
});
