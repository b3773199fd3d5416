import { YNotebook } from "@jupyter/ydoc";
import { describe, expect, it } from "vitest";
import { type Change, type RevertStep, applyChange, applyRevert, fitOf, insertAsNew, isReload, readCells } from "../src/cell-changes";
import { imagesOf } from "../src/cell-outputs";
import { outputText } from "../src/cell-outputs";
import { apply, diffLines, editsOf } from "../src/cell-diff";

function notebook(...sources: string[]): YNotebook {
  const made = YNotebook.create() as YNotebook;
  for (const [i, source] of sources.entries())
    made.insertCell(i, { id: `c${i}`, cell_type: "code", source, metadata: {} });
  return made;
}

function replace(source: string, base: string, more: Partial<Change> = {}): Change {
  return { number: 1, agent: "ada", op: "replace", cell: "c0", how: "", base, source, cell_type: "code", ...more };
}

const sources = (made: YNotebook): string[] => made.cells.map((cell) => cell.getSource());

describe("the edits between two texts", () => {
  it("lead from one to the other, for any texts", () => {
    const words = ["a", "b", "", "a\n", "\n", "😀", "😁", "x = 1\n"];
    let seed = 7;
    const next = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
    const random = (): string => Array.from({ length: next(9) }, () => words[next(words.length)]).join("");
    for (let i = 0; i < 2000; i++) {
      const [before, after] = [random(), random()];
      expect(apply(before, editsOf(before, after))).toBe(after);
    }
  });

  it("touch only what differs", () => {
    expect(editsOf("a = 1\nb = 2\nc = 3\n", "a = 10\nb = 2\nc = 4\n")).toEqual([
      { start: 16, end: 17, text: "4" },
      { start: 5, end: 5, text: "0" },
    ]);
  });

  it("do not split a surrogate pair", () => {
    expect(editsOf("😀", "😁")).toEqual([{ start: 0, end: 2, text: "😁" }]);
  });

  it("are shown by lines", () => {
    expect(diffLines("a\nb\nc", "a\nx\nc").map(({ kind, text }) => `${kind} ${text}`)).toEqual([
      "same a",
      "removed b",
      "added x",
      "same c",
    ]);
    expect(diffLines("", "a")).toEqual([{ kind: "added", text: "a" }]);
  });
});

describe("a change of a cell", () => {
  it("replaces the source that the agent has read, and undo takes it back in one step", () => {
    const made = notebook("a = 1\nb = 2\nc = 3");
    const cell = made.getCell(0);
    cell.updateSource(17, 17, "0");
    expect(applyChange(made, replace("a = 9\nb = 2\nc = 40", "a = 1\nb = 2\nc = 30"))?.cell).toBe("c0");
    cell.updateSource(0, 0, "# mine\n");
    expect(sources(made)).toEqual(["# mine\na = 9\nb = 2\nc = 40"]);
    cell.undo();
    expect(sources(made)).toEqual(["a = 9\nb = 2\nc = 40"]);
    cell.undo();
    expect(sources(made)).toEqual(["a = 1\nb = 2\nc = 30"]);
    cell.redo();
    expect(sources(made)).toEqual(["a = 9\nb = 2\nc = 40"]);
  });

  it("is refused after the user has edited the cell, which stays as it is", () => {
    const made = notebook("a = 1");
    made.getCell(0).updateSource(5, 5, "2");
    const change = replace("a = 3", "a = 1");
    expect(fitOf(made, change)).toBe("changed");
    expect(applyChange(made, change)).toBeUndefined();
    expect(sources(made)).toEqual(["a = 12"]);
    expect(insertAsNew(made, change)).toBe(made.getCell(1).id);
    expect(sources(made)).toEqual(["a = 12", "a = 3"]);
  });

  it("follows its cell when the cell is moved, and is applied once", () => {
    const made = notebook("a", "b", "c");
    made.moveCell(0, 2);
    const change = replace("A", "a");
    expect(applyChange(made, change)?.cell).toBe("c0");
    expect(sources(made)).toEqual(["b", "c", "A"]);
    expect(fitOf(made, change)).toBe("done");
    expect(applyChange(made, change)).toBeUndefined();
  });

  it("is refused when the cell is gone, or is of another type now", () => {
    const made = notebook("a", "b");
    made.deleteCell(0);
    expect(fitOf(made, replace("A", "a"))).toBe("missing");
    expect(fitOf(made, replace("B", "b", { cell: "c1", cell_type: "markdown" }))).toBe("changed");
  });

  it("inserts a cell below another or at the top, and deletes a cell", () => {
    const made = notebook("a", "b");
    const added = { ...replace("new", ""), op: "insert" as const, cell: "" };
    expect(applyChange(made, { ...added, after: "c0" })?.cell).toBe(made.getCell(1).id);
    applyChange(made, { ...added, after: "", cell_type: "markdown" });
    expect(sources(made)).toEqual(["new", "a", "new", "b"]);
    expect(made.getCell(0).cell_type).toBe("markdown");
    expect(fitOf(made, { ...added, after: "gone" })).toBe("missing");
    expect(applyChange(made, replace("", "b", { op: "delete", cell: "c1" }))?.cell).toBe("c1");
    expect(sources(made)).toEqual(["new", "a", "new"]);
  });
});

describe("reading cells", () => {
  it("returns first lines, or whole sources by id", () => {
    const made = notebook("\n# Load\nx = 1\n", "y".repeat(500));
    const outline = readCells(made, [], "c1");
    expect(outline.cells.map(({ source, lines }) => [source, lines])).toEqual([
      ["# Load", 3],
      ["y".repeat(120), 1],
    ]);
    expect(outline.cells.map((cell) => cell.shows_run)).toEqual([false, true]);
    expect(readCells(made, ["c1"], "").cells).toMatchObject([
      { id: "c1", type: "code", source: "y".repeat(500), lines: 1, shows_run: false },
    ]);
  });

  it("leaves out images that are too many or too large", () => {
    const image = (size: number) => ({ data: { "image/png": "x".repeat(size), "text/plain": "<Fig>" } });
    const lengths = (...sizes: number[]) => imagesOf([["c0", sizes.map(image)]]).map(({ data }) => data.length);
    expect(lengths(1, 2, 3, 4, 5)).toEqual([1, 2, 3, 4, 0]);
    expect(lengths(350_001, 300_000, 300_000, 9)).toEqual([0, 300_000, 0, 9]);
    expect(imagesOf([["c0", [{ data: { "image/png": ["a", "b"] } }, {}]]])).toEqual([
      { cell: "c0", media_type: "image/png", data: "ab" },
    ]);
  });

  it("continues an outline after its first 200 cells", () => {
    const made = notebook(...Array.from({ length: 450 }, (_, i) => `x${i}`));
    const read = (start?: number) => readCells(made, [], "", false, start).cells.map((cell) => cell.source);
    expect([read().length, read()[0], read(400).length, read(400)[0]]).toEqual([200, "x0", 50, "x400"]);
  });

  it("is limited in size", () => {
    expect(readCells(notebook("x".repeat(150_001)), ["c0"], "").problem).toMatch(/Read fewer cells/);
  });
});

describe("random edits of a user and proposals of agents", () => {
  it("lose no keystroke, and apply each accepted change once", () => {
    let seed = 11;
    const next = (below: number): number => (seed = (seed * 48271) % 2147483647) % below;
    let [accepted, refused] = [0, 0];
    for (let round = 0; round < 500; round++) {
      const made = notebook("a = 1\nb = 2\nc = 3", "x\ny");
      const typed: string[] = [];
      const changes: Change[] = [];
      for (let step = 0; step < 12; step++) {
        const cell = made.getCell(next(made.cells.length));
        const source = cell.getSource();
        const action = next(4);
        if (action === 0) {
          typed.push(`<${step}>`);
          const at = next(source.length + 1);
          // A user types at a place that no earlier keystroke of this test is split by.
          const place = source.slice(0, at).match(/<\d*$/) ? source.length : at;
          cell.updateSource(place, place, `<${step}>`);
        } else if (action === 1) {
          changes.push(replace(`${source}\nnew${step}`, source, { number: step, cell: cell.id }));
        } else if (action === 2) made.moveCell(next(made.cells.length), next(made.cells.length));
        else if (changes.length) {
          const change = changes.splice(next(changes.length), 1)[0]!;
          const before = made.cells.find(({ id }) => id === change.cell)?.getSource();
          const isDone = applyChange(made, change) !== undefined;
          const after = made.cells.find(({ id }) => id === change.cell)?.getSource();
          expect(isDone).toBe(before === change.base);
          expect(after).toBe(isDone ? change.source : before);
          if (isDone) accepted++;
          else refused++;
          if (isDone) expect(after!.split(`new${change.number}`).length).toBe(2);
        }
      }
      const all = sources(made).join("\n");
      for (const text of typed) expect(all.split(text).length).toBe(2);
    }
    expect(Math.min(accepted, refused)).toBeGreaterThan(50);
  }, 60_000);
});

describe("taking changes back", () => {
  const step = (op: RevertStep["op"], cell: string, more: Partial<RevertStep> = {}): RevertStep => ({
    op,
    cell,
    cell_type: "code",
    base: "",
    source: "",
    after: "",
    json: "",
    changes: [`1/${cell}`],
    ...more,
  });

  it("restores, removes, moves and inserts cells", () => {
    const made = notebook("new", "b", "c", "d");
    const json = JSON.stringify({ metadata: { tag: 1 }, outputs: [], execution_count: 3 });
    const { changes, left } = applyRevert(made, [
      step("delete", "c0", { base: "new" }),
      step("replace", "c1", { base: "b", source: "old" }),
      step("move", "c3", { base: "d", source: "d", after: "c1" }),
      step("insert", "gone", { source: "x = 1", after: "c3", json }),
    ]);
    expect(made.cells.map(({ id }) => id)).toEqual(["c1", "c3", "gone", "c2"]);
    expect(sources(made)).toEqual(["old", "d", "x = 1", "c"]);
    expect(made.getCell(2).toJSON()).toMatchObject({ id: "gone", metadata: { tag: 1 }, execution_count: 3 });
    expect(changes).toEqual(["1/c0", "1/c1", "1/c3", "1/gone"]);
    expect(left).toEqual([]);
  });

  it("leaves a cell that the user has edited in the meantime", () => {
    const made = notebook("mine", "b");
    const { changes, left } = applyRevert(made, [
      step("replace", "c0", { base: "theirs", source: "old" }),
      step("insert", "c1", { source: "twice" }),
      step("delete", "nowhere", { base: "" }),
    ]);
    expect(sources(made)).toEqual(["mine", "b"]);
    expect(changes).toEqual([]);
    expect(left.map(({ cell }) => cell)).toEqual(["c0", "c1", "nowhere"]);
  });

  it("neither deletes nor moves a cell with a cursor in it", () => {
    const made = notebook("new", "b", "c");
    const cursors = new Map(["c0", "c1", "c2"].map((cell) => [cell, { name: "kim" }]));
    const { changes, left } = applyRevert(
      made,
      [
        step("delete", "c0", { base: "new" }),
        step("move", "c1", { base: "b", source: "b", after: "c2" }),
        step("replace", "c2", { base: "c", source: "old" }),
      ],
      (cell) => cursors.get(cell),
    );
    expect(sources(made)).toEqual(["new", "b", "old"]);
    expect(changes).toEqual(["1/c2"]);
    expect(left).toEqual(["c0", "c1"].map((cell) => ({ cell, cursor: { name: "kim" } })));
  });

  it("keeps a deleted cell with its place for a later rewind", () => {
    const made = notebook("a", "b", "c");
    const applied = applyChange(made, replace("", "c", { op: "delete", cell: "c2" }));
    expect(applied?.above).toBe("c1 c0");
    expect(JSON.parse(applied?.removed ?? "")).toMatchObject({ id: "c2", source: "c" });
  });
});

describe("a move of a cell", () => {
  const move = (cell: string, after: string, base: string): Change => replace("", base, { op: "move", cell, after });

  it("keeps the cell's id, and undo takes it back", () => {
    for (const [cell, after, base, moved] of [
      ["c0", "c2", "a", "b c a"],
      ["c2", "", "c", "c a b"],
      ["c2", "c0", "c", "a c b"],
    ] as const) {
      const made = notebook("a", "b", "c");
      expect(fitOf(made, move(cell, after, base))).toBe("fits");
      expect(applyChange(made, move(cell, after, base))?.cell).toBe(cell);
      expect(sources(made).join(" ")).toBe(moved);
      expect(fitOf(made, move(cell, after, base))).toBe("done");
      made.undoManager.undo();
      expect(sources(made).join(" ")).toBe("a b c");
    }
  });

  it("does not fit if a cell has changed or is gone", () => {
    const made = notebook("a", "b");
    expect(fitOf(made, move("c0", "c1", "old"))).toBe("changed");
    expect(fitOf(made, move("c0", "gone", "a"))).toBe("missing");
    expect(applyChange(made, move("c0", "gone", "a"))).toBeUndefined();
  });
});

describe("a cell whose metadata says never", () => {
  it("is not changed, and agents learn why", () => {
    const made = notebook("a");
    made.getCell(0).setMetadata("nb-agents", { edit: "never", run: "never" });
    expect(fitOf(made, replace("b", "a"))).toBe("locked");
    expect(applyChange(made, replace("b", "a"))).toBeUndefined();
    expect(readCells(made, ["c0"], "").cells[0]).toMatchObject({ may_edit: false, may_run: false });
  });
});

describe("outputs of cells", () => {
  const stream = (text: string): object => ({ output_type: "stream", name: "stdout", text });
  const withOutputs = (...texts: string[]): YNotebook => {
    const made = notebook();
    for (const [i, text] of texts.entries())
      made.insertCell(i, { id: `c${i}`, cell_type: "code", source: "", metadata: {}, outputs: [stream(text)] as never });
    return made;
  };

  it("are read only if the agent may", () => {
    const made = withOutputs("secret");
    expect(readCells(made, ["c0"], "").cells[0]!.outputs).toBe("");
    expect(readCells(made, [], "", true).cells[0]!.outputs).toBe("");
    expect(readCells(made, ["c0"], "", true).cells[0]!.outputs).toBe("secret");
  });

  it("are bounded for a cell and in total, and the end is kept", () => {
    const long = `${"x".repeat(10_000)}end`;
    const { cells } = readCells(withOutputs(...Array<string>(9).fill(long)), [..."012345678"].map((i) => `c${i}`), "", true);
    expect(cells[0]!.outputs).toMatch(/^\[6003 characters left out\]\nx+end$/);
    expect(cells.reduce((sum, cell) => sum + cell.outputs.length, 0)).toBeLessThan(21_000);
  });

  it("are text without terminal codes, and images are named", () => {
    const error = { output_type: "error", ename: "ValueError", evalue: "no", traceback: ["\x1b[31mline 1\x1b[0m"] };
    const plot = { output_type: "display_data", data: { "image/png": "aGk=", "text/plain": ["<Figure>"] } };
    expect(outputText([error, plot])).toBe("line 1\n<Figure>\n[image/png]");
    expect(outputText([{ ...error, traceback: [] }])).toBe("ValueError: no");
  });
});

describe("a page that ended before it reported what it did", () => {
  const insertion: Change = { ...replace("x = 1", ""), op: "insert", cell: "", after: "c0", new_cell: "new" };

  it("does not insert a cell twice", () => {
    const made = notebook("a = 1");
    expect(applyChange(made, insertion)?.cell).toBe("new");
    expect(fitOf(made, insertion)).toBe("done");
    expect(applyChange(made, insertion)).toBeUndefined();
    expect(sources(made)).toEqual(["a = 1", "x = 1"]);
  });

  it("does not put the text of a stale change into two cells", () => {
    const made = notebook("mine");
    const stale = replace("b = 1", "a = 1", { new_cell: "new" });
    expect([fitOf(made, stale), insertAsNew(made, stale), fitOf(made, stale)]).toEqual(["changed", "new", "done"]);
  });
});

it("a deletion is not taken as done in a notebook whose cells get new ids", () => {
  const made = notebook("a = 1");
  const deletion: Change = { ...replace("", "a = 1"), op: "delete", cell: "gone" };
  expect(fitOf(made, deletion)).toBe("done");
  made.nbformat_minor = 4;
  expect(fitOf(made, deletion)).toBe("missing");
});

describe("a notebook that is read from its file again", () => {
  const isReloadAfter = (act: (made: YNotebook) => void): boolean[] => {
    const made = notebook("a", "b", "c");
    const found: boolean[] = [];
    made.changed.connect((_, { cellsChange }) => {
      if (cellsChange) found.push(isReload(cellsChange, made.cells.length));
    });
    act(made);
    return found;
  };
  const json = { cells: [{ id: "c0", cell_type: "code", source: "a", metadata: {} }], metadata: {}, nbformat: 4, nbformat_minor: 5 };

  it("has new cells only", () => {
    expect(isReloadAfter((made) => made.fromJSON(json as never))).toContain(true);
  });

  it.each<[string, (made: YNotebook) => void]>([
    ["deletes the first cell", (made) => made.deleteCell(0)],
    ["deletes all cells but the last", (made) => made.deleteCellRange(0, 2)],
    ["moves the first cell", (made) => made.moveCell(0, 2)],
    ["inserts a cell at the top", (made) => made.insertCell(0, { cell_type: "code", source: "" })],
    ["edits a cell", (made) => made.getCell(0).setSource("z")],
  ])("is not one whose user %s", (_, act) => {
    expect(isReloadAfter(act)).not.toContain(true);
  });
});
