import { YNotebook } from "@jupyter/ydoc";
import { describe, expect, it, vi } from "vitest";
import { keepActiveCell } from "../src/active-cell";

/** A notebook that, like JupyterLab's, makes a neighbor active while another cell is moved. */
class Content {
  readonly notebook = YNotebook.create() as YNotebook;
  readonly model = { sharedModel: this.notebook };
  readonly isDisposed = false;
  /** The cells that got the cursor. */
  readonly focused: string[] = [];
  private index = 0;
  private current: "command" | "edit" = "command";

  constructor(...ids: string[]) {
    for (const id of ids)
      this.notebook.insertCell(this.notebook.cells.length, { id, cell_type: "code", source: id, metadata: {} });
    this.notebook.changed.connect((_, { cellsChange }) => {
      if (cellsChange) this.activeCellIndex = Math.max(0, this.index - 1);
    });
  }

  get widgets() {
    return this.notebook.cells.map(({ id }) => ({ model: { id } }));
  }

  get activeCell() {
    return this.widgets[this.index];
  }

  set activeCellIndex(index: number) {
    this.index = index;
    this.ensureFocus();
  }

  get mode() {
    return this.current;
  }

  set mode(mode) {
    this.setMode(mode);
  }

  setMode(mode: "command" | "edit", options = { focus: true }): void {
    this.current = mode;
    if (options.focus) this.ensureFocus();
  }

  private ensureFocus(): void {
    const id = this.activeCell?.model.id ?? "";
    if (this.current === "edit" && this.focused.at(-1) !== id) this.focused.push(id);
  }
}

function opened(...ids: string[]): Content {
  const content = new Content(...ids);
  keepActiveCell({ content, disposed: { connect: vi.fn() } } as never);
  return content;
}

describe("the active cell while another one is moved", () => {
  it("keeps the cursor, which no other cell gets", () => {
    const content = opened("a", "b", "c", "d");
    content.activeCellIndex = 3;
    content.mode = "edit";
    content.notebook.moveCell(1, 0);
    expect([content.activeCell?.model.id, content.mode, content.focused]).toEqual(["d", "edit", ["d"]]);
  });

  it("stays active without a cursor", () => {
    const content = opened("a", "b", "c");
    content.activeCellIndex = 2;
    content.notebook.moveCell(1, 0);
    expect([content.activeCell?.model.id, content.mode, content.focused]).toEqual(["c", "command", []]);
  });

  it("is another one if it was deleted", () => {
    const content = opened("a", "b", "c");
    content.activeCellIndex = 2;
    content.mode = "edit";
    content.notebook.deleteCell(2);
    expect([content.activeCell?.model.id, content.mode]).toEqual(["b", "edit"]);
  });
});
