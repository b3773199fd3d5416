/**
 * Reads the cells of an open notebook for agents, and applies proposed changes to them.
 *
 * A change is applied in one synchronous function, so that no key press falls in between. It edits the cell
 * itself and only the lines that differ, so the cursor stays, and undo takes the change back in one step.
 */

import type { ISharedCell, YNotebook } from "@jupyter/ydoc";
import { editsOf } from "./cell-diff";
import { MAX_OUTPUTS, lastChars, outputsOf } from "./cell-outputs";
import type { CursorOwner } from "./cursors";

/** A proposed change, as in `nb_agents/extensions/notebook_cells/cell_views.py`. Its texts are untrusted. */
export interface Change {
  readonly number: number;
  readonly agent: string;
  readonly op: "insert" | "replace" | "delete" | "move";
  /** The cell to replace, delete or move. */
  readonly cell: string;
  /** "" while the change is open. */
  readonly how: string;
  /** For an insertion or a move, the cell above, or "" for the top. */
  readonly after?: string;
  /** The source that the agent has read. */
  readonly base?: string;
  readonly source?: string;
  readonly cell_type?: string;
  readonly why?: string;
  /** The id for a cell that the change inserts. So a page finds it again after a reload. */
  readonly new_cell?: string;
}

/** A cell for an agent, as in `nb_agents/extensions/notebook_cells/cells.py`. */
export interface ReadCell {
  readonly id: string;
  readonly type: string;
  readonly source: string;
  readonly lines: number;
  readonly shows_run: boolean;
  readonly may_edit: boolean;
  readonly may_run: boolean;
  /** The outputs as text, if the agent may read them. */
  readonly outputs: string;
}

export interface Read {
  readonly count: number;
  readonly cells: readonly ReadCell[];
  /** Why the cells can't be read, or "". */
  readonly problem: string;
}

/** A step that takes back changes, as in `nb_agents/extensions/notebook_cells/reverting.py`. */
export interface RevertStep {
  readonly op: "insert" | "replace" | "delete" | "move";
  readonly cell: string;
  readonly cell_type: string;
  /** The source that the cell must have, or "" for an insertion. */
  readonly base: string;
  readonly source: string;
  /** For an insertion or a move, the cell above, or "" for the top. */
  readonly after: string;
  /** A deleted cell as JSON text, or "". */
  readonly json: string;
  /** The changes that the step takes back. */
  readonly changes: readonly string[];
}

/** What was applied, and what a rewind needs to take it back. */
export interface Applied {
  readonly cell: string;
  /** A deleted cell as JSON text, or "". */
  readonly removed: string;
  /** The ids of the cells above a deleted cell, nearest first. */
  readonly above: string;
}

/**
 * Whether a change can be applied: its cell is as the agent read it, has changed, is gone, is as proposed, or has
 * metadata that forbids it.
 */
export type Fit = "fits" | "changed" | "missing" | "done" | "locked";

const MAX_OUTLINE = 200;
const MAX_LINE = 120;
const MAX_CHARS = 150_000;
const MAX_REMOVED = 500_000;
const MAX_ABOVE = 20;
const TYPES = ["code", "markdown", "raw"] as const;

/** Return whether a cell's metadata lets agents do something with the cell. */
export function isAllowed(cell: ISharedCell, action: "edit" | "run"): boolean {
  const marks = cell.getMetadata("nb-agents") as { readonly [action: string]: unknown } | undefined;
  return marks?.[action] !== "never";
}

/**
 * Read cells.
 *
 * @param ids The cells to read whole. Without ids, the first lines of at most 200 cells.
 * @param shown The id of the cell that shows the run.
 * @param outputs Whether to read the outputs, too.
 * @param start Without ids, the number of cells to skip.
 */
export function readCells(notebook: YNotebook, ids: readonly string[], shown: string, outputs = false, start = 0): Read {
  const count = notebook.cells.length;
  const requested = ids.length ? notebook.cells.filter((cell) => ids.includes(cell.id)) : notebook.cells.slice(start, start + MAX_OUTLINE);
  let remaining = outputs && ids.length ? MAX_OUTPUTS : 0;
  const cells = requested.map((cell) => {
    const source = cell.getSource();
    const text = remaining > 0 ? lastChars(outputsOf(cell), remaining) : "";
    remaining -= text.length;
    return {
      id: cell.id,
      type: cell.cell_type,
      source: ids.length ? source : firstLine(source),
      lines: lineCount(source),
      shows_run: cell.id === shown,
      may_edit: isAllowed(cell, "edit"),
      may_run: isAllowed(cell, "run"),
      outputs: text,
    };
  });
  if (cells.reduce((sum, cell) => sum + cell.source.length, 0) <= MAX_CHARS) return { count, cells, problem: "" };
  const problem = `These cells have more than ${MAX_CHARS} characters. Read fewer cells in one call.`;
  return { count, cells: [], problem };
}

function firstLine(source: string): string {
  const lines = source.split("\n").map((line) => line.trim());
  return (lines.find((line) => line !== "") ?? "").slice(0, MAX_LINE);
}

function lineCount(source: string): number {
  return source === "" ? 0 : source.replace(/\n$/, "").split("\n").length;
}

/** Return whether a change can be applied to the notebook now. */
export function fitOf(notebook: YNotebook, change: Change): Fit {
  if (change.new_cell && notebook.cells.some(({ id }) => id === change.new_cell)) return "done";
  if (change.op === "insert") return indexAfter(notebook, change.after ?? "") < 0 ? "missing" : "fits";
  const cell = notebook.cells.find(({ id }) => id === change.cell);
  // Before format 4.5, cells get new ids each time the notebook is opened, so the cell may still be there.
  if (!cell) return change.op === "delete" && notebook.nbformat_minor >= 5 ? "done" : "missing";
  if (!isAllowed(cell, "edit")) return "locked";
  if (cell.cell_type !== change.cell_type) return "changed";
  const source = cell.getSource();
  if (change.op === "move" && source === change.base) return fitOfMove(notebook, change);
  if (source === change.base) return "fits";
  return change.op === "replace" && source === change.source ? "done" : "changed";
}

function fitOfMove(notebook: YNotebook, change: Change): Fit {
  const target = indexAfter(notebook, change.after ?? "");
  if (target < 0) return "missing";
  return notebook.cells.findIndex(({ id }) => id === change.cell) === target ? "done" : "fits";
}

/**
 * Apply a change if it fits.
 *
 * @returns The changed, deleted or inserted cell, or undefined if nothing was changed.
 */
export function applyChange(notebook: YNotebook, change: Change): Applied | undefined {
  if (fitOf(notebook, change) !== "fits") return undefined;
  if (change.op === "insert") {
    const cell = insert(notebook, change, indexAfter(notebook, change.after ?? ""));
    return { cell, removed: "", above: "" };
  }
  const index = notebook.cells.findIndex(({ id }) => id === change.cell);
  if (change.op === "replace") {
    setSource(notebook, index, change.source ?? "");
    return { cell: change.cell, removed: "", above: "" };
  }
  const ids = notebook.cells.slice(Math.max(0, index - MAX_ABOVE), index).map(({ id }) => id);
  const above = ids.reverse().join(" ");
  if (change.op === "move") {
    move(notebook, index, indexAfter(notebook, change.after ?? ""));
    return { cell: change.cell, removed: "", above };
  }
  const removed = JSON.stringify(notebook.getCell(index).toJSON());
  remove(notebook, index);
  return { cell: change.cell, removed: removed.length > MAX_REMOVED ? "" : removed, above };
}

/** Move a cell to the place before another one, given by its index. */
function move(notebook: YNotebook, index: number, target: number): void {
  notebook.undoManager.stopCapturing();
  notebook.moveCell(index, index < target ? target - 1 : target);
  notebook.undoManager.stopCapturing();
}

/** A cell that a rewind leaves as it is, because it has changed or a cursor is in it. */
export interface LeftCell {
  readonly cell: string;
  /** The user whose cursor is in the cell, or undefined if the cell has changed since the rewind was planned. */
  readonly cursor: CursorOwner | undefined;
}

/**
 * Take back changes. A step is left out if its cell does not have the expected source. A cell with a cursor in it is
 * neither deleted nor moved, because keys that its user presses now would be lost.
 *
 * @param cursorOf Returns whose cursor is in a cell.
 * @returns The changes that were taken back, and the cells of steps that were left out.
 */
export function applyRevert(
  notebook: YNotebook,
  steps: readonly RevertStep[],
  cursorOf: (cell: string) => CursorOwner | undefined = () => undefined,
): { readonly changes: readonly string[]; readonly left: readonly LeftCell[] } {
  const changes: string[] = [];
  const left = new Map<string, LeftCell>();
  for (const step of steps) {
    const cursor = replacesEditor(step.op) ? cursorOf(step.cell) : undefined;
    if (!cursor && revert(notebook, step)) changes.push(...step.changes);
    else left.set(step.cell, { cell: step.cell, cursor });
  }
  return { changes, left: [...left.values()] };
}

/** Return whether an operation removes the editor of its cell. A moved cell gets a new one. */
export function replacesEditor(op: Change["op"]): boolean {
  return op === "delete" || op === "move";
}

function revert(notebook: YNotebook, step: RevertStep): boolean {
  const index = notebook.cells.findIndex(({ id }) => id === step.cell);
  const below = indexAfter(notebook, step.after);
  if (step.op === "insert") {
    if (index >= 0) return false;
    const cell = { ...cellFrom(step.json), id: step.cell, cell_type: typeOf(step.cell_type), source: step.source };
    insertAt(notebook, below < 0 ? notebook.cells.length : below, cell);
    return true;
  }
  const cell = notebook.cells[index];
  if (!cell || cell.cell_type !== step.cell_type || cell.getSource() !== step.base) return false;
  if (step.op === "delete") remove(notebook, index);
  else if (step.op === "replace") setSource(notebook, index, step.source);
  else if (below >= 0) move(notebook, index, below);
  return true;
}

function cellFrom(json: string): object {
  try {
    return JSON.parse(json) as object;
  } catch {
    return { metadata: {} }; // the cell was too long to be recorded
  }
}

/** Insert a code cell below a cell, or at the end if that is gone. */
export function insertBelow(notebook: YNotebook, id: string, source: string): string {
  const index = indexAfter(notebook, id);
  return insertAt(notebook, index < 0 ? notebook.cells.length : index, { cell_type: "code", source, metadata: {} });
}

/** Replace the source of a cell, so that the cursor stays and undo takes it back in one step. */
export function replaceSource(notebook: YNotebook, index: number, source: string): void {
  setSource(notebook, index, source);
}

function setSource(notebook: YNotebook, index: number, source: string): void {
  const cell = notebook.getCell(index);
  cell.undoManager?.stopCapturing();
  for (const edit of editsOf(cell.getSource(), source)) cell.updateSource(edit.start, edit.end, edit.text);
  cell.undoManager?.stopCapturing();
}

function remove(notebook: YNotebook, index: number): void {
  notebook.undoManager.stopCapturing();
  notebook.deleteCell(index);
  notebook.undoManager.stopCapturing();
}

/**
 * Put the source of a change into a new cell, below its own cell or, if that is gone, at the end.
 *
 * @returns The id of the new cell.
 */
export function insertAsNew(notebook: YNotebook, change: Change): string {
  const index = notebook.cells.findIndex(({ id }) => id === change.cell);
  return insert(notebook, change, index < 0 ? notebook.cells.length : index + 1);
}

function insert(notebook: YNotebook, change: Change, index: number): string {
  const { cell_type, source = "", new_cell } = change;
  const id = new_cell ? { id: new_cell } : {};
  return insertAt(notebook, index, { ...id, cell_type: typeOf(cell_type), source, metadata: {} });
}

function insertAt(notebook: YNotebook, index: number, cell: Parameters<YNotebook["insertCell"]>[1]): string {
  notebook.undoManager.stopCapturing();
  const { id } = notebook.insertCell(index, cell);
  notebook.undoManager.stopCapturing();
  return id;
}

function typeOf(cellType: string | undefined): (typeof TYPES)[number] {
  return TYPES.find((type) => type === cellType) ?? "code";
}

/** Return the index of the place below a cell, 0 for "", or -1 if the cell is gone. */
function indexAfter(notebook: YNotebook, id: string): number {
  if (id === "") return 0;
  const index = notebook.cells.findIndex((cell) => cell.id === id);
  return index < 0 ? -1 : index + 1;
}

/** A part of a change of a notebook's list of cells. */
export interface CellsDelta {
  readonly delete?: number;
  readonly insert?: readonly unknown[];
}

/**
 * Return whether all cells of a notebook were replaced, as "Revert" does.
 *
 * @param cellsChange What was retained, deleted and inserted. The cells after the last change are left out.
 * @param count The number of cells afterwards.
 */
export function isReload(cellsChange: readonly CellsDelta[], count: number): boolean {
  const sum = (sizes: readonly number[]): number => sizes.reduce((a, b) => a + b, 0);
  const deleted = sum(cellsChange.map((each) => each.delete ?? 0));
  const inserted = sum(cellsChange.map((each) => each.insert?.length ?? 0));
  return deleted > 0 && inserted > 0 && count === inserted;
}
