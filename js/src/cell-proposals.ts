/**
 * Lets agents read the notebook that shows their run, and shows their proposed changes at the cells.
 *
 * Nothing changes before the user accepts. A proposal is untrusted text: it is never rendered as HTML or Markdown.
 */

import type { YNotebook } from "@jupyter/ydoc";
import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookCellExecutor, NotebookPanel } from "@jupyterlab/notebook";
import { keepActiveCell } from "./active-cell";
import {
  type Applied,
  type Change,
  applyChange,
  applyRevert,
  fitOf,
  insertAsNew,
  isReload,
  readCells,
  replacesEditor,
} from "./cell-changes";
import { imagesOf, listOutputs } from "./cell-outputs";
import { CellRuns } from "./cell-runs";
import { type Place, modelOf } from "./cells";
import { type CellsApi, type CellsRequest, type RevertPlan, cellsPart } from "./cells-api";
import { type CursorOwner, cursorIn } from "./cursors";
import { setText } from "./dom";
import { pageName } from "./page-name";
import { type Bar, type Box, makeBar, makeBox } from "./proposal-box";
import { RevertReport } from "./revert-report";
import { trans } from "./text";

/** All turns that open notebooks show. */
export class CellProposals {
  private readonly shown = new WeakMap<NotebookPanel, Map<string, TurnProposals>>();

  constructor(
    private readonly api: CellsApi,
    private readonly report: (problem: string) => void,
    private readonly executor: INotebookCellExecutor | null,
    /** Draw the card of a turn again. Decisions after its end are on no stream. */
    private readonly redrawCard: (turn: string) => void,
  ) {}

  /**
   * Take the state of a turn.
   *
   * @param isLive Whether the state is from the server, which alone may ask to read cells.
   */
  take(turn: string, parts: unknown, place: Place | undefined, isLive: boolean): void {
    const part = cellsPart(parts);
    if (!part || !place) return;
    let turns = this.shown.get(place.panel);
    if (!turns) {
      this.shown.set(place.panel, (turns = new Map()));
      keepActiveCell(place.panel);
    }
    const { api, report, executor, redrawCard } = this;
    const proposals = turns.get(turn) ?? new TurnProposals(turn, place, api, report, executor, redrawCard);
    turns.set(turn, proposals);
    if (isLive) for (const request of part.requests) void proposals.answer(request);
    proposals.runs.take(part.runs ?? [], isLive);
    void proposals.load(part.open, isLive);
    if (part.revert && isLive) void proposals.revert();
  }
}

/** Time after which a change that the notebook already contains counts as accepted, even if another page claimed it. */
const REPORT_MS = 10_000;
/** Delays before a report is sent again to a server that can't be reached. The last one repeats. */
const RETRY_MS = [500, 1000, 2000, 5000];
/** Interval at which a page looks for decisions of other pages after the turn's end. */
const REFRESH_MS = 3000;

/** The proposals of a turn in one notebook. */
class TurnProposals {
  private readonly answered = new Set<number>();
  private readonly decided = new Set<number>();
  /** The changes that the notebook already contains, which are being reported. */
  private readonly applied = new Set<number>();
  private changes: readonly Change[] = [];
  /** The accepted changes that are newer than the file that this page has opened. */
  private unsaved: readonly Change[] | undefined;
  private readonly boxes = new Map<number, Box>();
  private readonly bar: Bar;
  readonly runs: CellRuns;
  private loaded: string | undefined;
  private isDrawPending = false;
  private isReverting = false;
  /** The number of requests for the proposals. Only the reply to the last one counts. */
  private asked = 0;
  private isLive = true;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly cellId: string;

  constructor(
    private readonly turn: string,
    private readonly place: Place,
    private readonly api: CellsApi,
    private readonly report: (problem: string) => void,
    executor: INotebookCellExecutor | null,
    private readonly redrawCard: (turn: string) => void,
  ) {
    const runs = {
      wanted: () => api.cellRuns(turn),
      record: (body: object) => api.hasChanged(turn, "cells_run", body),
      end: (body: object) => this.post("cells_run", body),
    };
    this.cellId = place.cell.model.id;
    this.runs = new CellRuns(place.panel, this.cellId, runs, executor);
    const all = (act: (change: Change, claim: Promise<boolean>) => Promise<void>) => async (): Promise<void> => {
      const open = this.open;
      const claims = await Promise.all(open.map((change) => this.claim(change)));
      await Promise.all(open.map((change, i) => act(change, Promise.resolve(claims[i]!)))); // in their order
    };
    this.bar = makeBar(place.panel, {
      next: () => this.next(),
      acceptAll: all((change, claim) => this.accept(change, claim)),
      rejectAll: all((change, claim) => this.reject(change, claim)),
    });
    place.panel.content.modelContentChanged.connect(() => this.drawSoon());
    this.notebook.changed.connect((_, { cellsChange }) => {
      if (cellsChange && isReload(cellsChange, this.notebook.cells.length)) void this.reload(this.savedAt());
    });
  }

  /**
   * Look for accepted changes that the notebook lost, because it was read from the file again.
   *
   * @param savedAt When this page last saved the notebook, in Unix seconds.
   */
  private async reload(savedAt: number): Promise<void> {
    const asked = ++this.asked;
    let changes: readonly Change[];
    try {
      changes = await this.api.proposals(this.turn, savedAt);
    } catch (error) {
      this.report(error instanceof Error ? error.message : String(error));
      return;
    }
    if (asked === this.asked) this.changes = changes;
    this.unsaved = changes.filter(isNewlyAccepted);
    for (const { number } of this.unsaved) this.decided.delete(number);
    this.draw();
  }

  /** Send the cells that an agent asks for. */
  async answer({ request, ids, outputs, images, untrusted, start }: CellsRequest): Promise<void> {
    if (this.answered.has(request)) return;
    this.answered.add(request);
    const { panel } = this.place;
    const head = { request, notebook: panel.title.label };
    if (!untrusted && hasUntrustedOutput(panel)) {
      await this.post("cells_read", { ...head, count: 0, cells: "[]", untrusted: true });
      return;
    }
    const { count, cells, problem } = readCells(this.notebook, ids, this.cellId, outputs, start);
    const withImages = images && !problem ? this.notebook.cells.filter(({ id }) => ids.includes(id)) : [];
    const found = imagesOf(withImages.map((each) => [each.id, listOutputs(each)]));
    const body = { ...head, count, cells: JSON.stringify(cells), problem };
    await this.post("cells_read", found.length ? { ...body, images: JSON.stringify(found) } : body);
  }

  /**
   * Take back the changes after the checkpoint of a rewind, in one synchronous step.
   *
   * @param force Whether the user asks for it although another page has started.
   */
  async revert(force = false): Promise<void> {
    if (this.isReverting) return;
    this.isReverting = true;
    const cells = this.notebook.cells.map((cell) => ({ id: cell.id, type: cell.cell_type, source: cell.getSource() }));
    let plan: RevertPlan;
    try {
      plan = await this.api.revertPlan(this.turn, { page: pageName(), cells: JSON.stringify(cells), force });
    } catch (error) {
      this.isReverting = false; // the next state tries again
      this.report(error instanceof Error ? error.message : String(error));
      return;
    }
    const report = new RevertReport(this.place.panel, this.host, () => {
      this.isReverting = false;
      void this.revert(true);
    });
    if (plan.open && !plan.mine) report.showOther();
    if (!plan.mine || this.place.panel.isDisposed) return;
    const { changes, left } = applyRevert(this.notebook, plan.steps ?? [], (cell) => cursorIn(this.place.panel, cell));
    const kept = plan.kept ?? [];
    report.show(new Set(plan.steps?.map(({ cell }) => cell)).size - left.length, kept, left);
    await this.post("cells_reverted", {
      changes: [...changes, ...(plan.done ?? [])].join(" "),
      kept: [...left, ...kept].map(({ cell }) => cell).join(" "),
    });
  }

  /**
   * Show the open proposals.
   *
   * @param open Their numbers, which may be older than the server's.
   * @param isLive Whether the turn is live, so the page gets each decision.
   */
  async load(open: readonly number[], isLive: boolean): Promise<void> {
    const numbers = open.join();
    this.isLive = isLive;
    if (numbers === this.loaded) {
      this.refreshLater();
      return;
    }
    this.loaded = numbers;
    const asked = ++this.asked;
    let changes: readonly Change[] = [];
    try {
      if (!this.unsaved) {
        changes = await this.api.proposals(this.turn, this.savedAt());
        this.unsaved = changes.filter(isNewlyAccepted);
      } else if (open.length) changes = await this.api.proposals(this.turn);
    } catch {
      this.loaded = undefined; // the server can't be reached; the next state tries again
      return;
    }
    if (asked !== this.asked) return;
    this.changes = changes;
    this.draw();
    const isOld = changes.some(({ number, how }) => how !== "" && open.includes(number));
    if (isOld && !isLive) this.redrawCard(this.turn);
  }

  /** When the file was last saved, in Unix seconds. */
  private savedAt(): number {
    return Math.floor(Date.parse(this.place.panel.context.contentsModel?.last_modified ?? "") / 1000) || 0;
  }

  /** The accepted changes that the notebook does not have, because a page ended before it was saved. */
  private get lost(): readonly Change[] {
    const { notebook } = this;
    return (this.unsaved ?? []).filter((each) => !this.decided.has(each.number) && fitOf(notebook, each) === "fits");
  }

  /** Take the decisions of other pages, and of this one. */
  private async refresh(): Promise<void> {
    const before = this.open.length;
    const asked = ++this.asked;
    try {
      const changes = await this.api.proposals(this.turn);
      if (asked !== this.asked) return;
      this.changes = changes;
    } catch {
      this.loaded = undefined; // the server can't be reached; the next state tries again
      this.refreshLater();
      return;
    }
    this.draw();
    if (!this.isLive && this.open.length !== before) this.redrawCard(this.turn);
  }

  /** After the end of the turn, look from time to time whether another page has decided. */
  private refreshLater(): void {
    clearTimeout(this.timer);
    if (this.isLive || !this.boxes.size) return;
    this.timer = setTimeout(() => {
      if (this.place.panel.isDisposed) return;
      if (document.hidden) this.refreshLater();
      else void this.refresh();
    }, REFRESH_MS);
  }

  private get notebook(): YNotebook {
    return this.place.panel.content.model!.sharedModel as YNotebook;
  }

  /** The element of the run's cell. A cell that is moved or reloaded gets another one. */
  private get host(): HTMLElement {
    const cell = this.place.panel.content.widgets.find(({ model }) => model?.id === this.cellId);
    return (cell ?? this.place.cell).node;
  }

  private get open(): readonly Change[] {
    return this.changes.filter(({ how, number }) => how === "" && !this.decided.has(number));
  }

  private drawSoon(): void {
    if (this.isDrawPending || !this.boxes.size) return;
    this.isDrawPending = true;
    requestAnimationFrame(() => {
      this.isDrawPending = false;
      this.draw();
    });
  }

  private draw(): void {
    if (this.place.panel.isDisposed || !this.place.panel.content.model) return;
    const [open, lost] = [this.open, this.lost];
    for (const [number, box] of this.boxes)
      if (![...open, ...lost].some((change) => change.number === number)) {
        box.remove();
        this.boxes.delete(number);
      }
    for (const change of open) this.drawChange(change);
    for (const change of lost) this.drawLost(change);
    this.bar.draw(open.length, this.host);
    this.refreshLater();
  }

  private drawChange(change: Change): void {
    const fit = fitOf(this.notebook, change);
    if (fit === "done") {
      void this.reportApplied(change);
      return;
    }
    let box = this.boxes.get(change.number);
    if (!box) {
      box = makeBox(change, {
        accept: () => this.accept(change),
        asNew: () => this.asNew(change),
        reject: () => this.reject(change),
        force: () => this.takeOver(change),
      });
      this.boxes.set(change.number, box);
    }
    const current = this.notebook.cells.find(({ id }) => id === change.cell);
    box.draw(fit, current?.getSource() ?? "");
    this.attach(box.el, change);
  }

  /** Offer to apply an accepted change again. The decision is recorded already. */
  private drawLost(change: Change): void {
    const close = (act: () => unknown) => async (): Promise<void> => {
      if (act() === undefined) return;
      this.decided.add(change.number);
      this.draw();
    };
    const none = async (): Promise<void> => {};
    const accept = close(() => this.apply(change));
    const box = this.boxes.get(change.number) ?? makeBox(change, { accept, reject: close(() => true), asNew: none, force: none });
    this.boxes.set(change.number, box);
    box.draw("lost", "");
    this.attach(box.el, change);
  }

  /** Put a box at its cell, which gets another widget when it is moved. */
  private attach(el: HTMLElement, change: Change): void {
    const { widgets } = this.place.panel.content;
    const where = el.querySelector<HTMLElement>(".where");
    if (where && change.op === "move") setText(where, this.placeOf(change));
    const id = change.op === "insert" ? change.after : change.cell;
    const cell = widgets.find(({ model }) => model.id === id);
    const isTop = change.op === "insert" && id === "";
    const host = (isTop ? widgets[0] : cell)?.node ?? this.host;
    if (el.parentElement === host) return;
    if (isTop) host.prepend(el);
    else host.append(el);
  }

  /** Describe where a move puts its cell. */
  private placeOf(change: Change): string {
    const index = this.place.panel.content.widgets.findIndex(({ model }) => model.id === change.after);
    return index < 0 ? trans.__("To the top of the notebook") : trans.__("Below cell %1", index + 1);
  }

  private next(): void {
    const boxes = [...this.boxes.values()];
    const current = boxes.findIndex(({ el }) => el.contains(document.activeElement));
    boxes[(current + 1) % boxes.length]?.focus();
  }

  private accept(change: Change, claim?: Promise<boolean>): Promise<void> {
    return this.decide(change, "accepted", () => this.apply(change), claim);
  }

  private apply(change: Change): Applied | undefined {
    // Keys that the cursor's user presses now would go to another cell.
    const cursor = replacesEditor(change.op) ? cursorIn(this.place.panel, change.cell) : undefined;
    if (!cursor) return applyChange(this.notebook, change);
    this.report(cursorProblem(change.op === "move", cursor));
    return undefined;
  }

  private asNew(change: Change): Promise<void> {
    return this.decide(change, "inserted", () => ({ cell: insertAsNew(this.notebook, change) }));
  }

  private reject(change: Change, claim?: Promise<boolean>): Promise<void> {
    const how = fitOf(this.notebook, change) === "fits" ? "rejected" : "stale";
    return this.decide(change, how, () => ({}), claim);
  }

  /** Report a change that an earlier page, or another one, applied without reporting it. */
  private async reportApplied(change: Change): Promise<void> {
    if (this.applied.has(change.number)) return;
    this.applied.add(change.number);
    if (!(await this.claim(change))) await new Promise((resolve) => setTimeout(resolve, REPORT_MS));
    const isOpen = this.open.includes(change) && !this.place.panel.isDisposed;
    if (isOpen && fitOf(this.notebook, change) === "done" && (await this.claim(change, true)))
      await this.decide(change, ...doneAs(this.notebook, change), Promise.resolve(true), true);
    this.applied.delete(change.number);
  }

  /** Claim a proposal from a page that may be gone. The user decides it then. */
  private async takeOver(change: Change): Promise<void> {
    if (await this.claim(change, true)) this.boxes.get(change.number)?.setClaimed(false);
  }

  /** Return whether this page may decide a proposal. */
  private async claim(change: Change, force = false): Promise<boolean> {
    const { number } = change;
    try {
      const { open, mine } = await this.api.claim(this.turn, { number, page: pageName(), force });
      if (open && !mine) this.boxes.get(number)?.setClaimed(true);
      if (!open) void this.refresh(); // another page has decided it
      return mine;
    } catch (error) {
      this.report(error instanceof Error ? error.message : String(error));
      return false;
    }
  }

  /**
   * Decide a proposal, unless another page decides it.
   *
   * @param act Changes the notebook in one synchronous step. It returns undefined if nothing was changed.
   * @param claim Resolves to whether this page may decide the proposal.
   * @param found Whether the notebook already contained the change.
   */
  private async decide(
    change: Change,
    how: string,
    act: () => Partial<Applied> | undefined,
    claim = this.claim(change),
    found = false,
  ): Promise<void> {
    if (!(await claim)) return;
    // The claim takes a moment, in which the user may have closed the notebook, clicked again or stopped the run.
    if (!this.open.some(({ number }) => number === change.number) || this.place.panel.isDisposed) return;
    const applied = act();
    if (applied === undefined) {
      this.draw();
      return;
    }
    this.decided.add(change.number);
    this.draw();
    await this.post("cells_decide", { number: change.number, how, cell: "", found, ...applied });
    if (!this.isLive) this.redrawCard(this.turn);
  }

  /** Report what this page did, also if the server is restarted meanwhile. */
  private async post(verb: string, body: object): Promise<void> {
    for (let n = 0; ; n++) {
      const { refusal, isUnreachable } = await this.api.tryPost(this.turn, verb, body);
      if (refusal && (n === 0 || !isUnreachable)) this.report(refusal);
      if (!isUnreachable || this.place.panel.isDisposed) return;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(n, RETRY_MS.length - 1)]));
    }
  }
}

/** Return whether a change was accepted after the time for which proposals were listed. */
function isNewlyAccepted({ how, cell_type }: Change): boolean {
  return how === "accepted" && cell_type !== undefined;
}

/** Say why a cell with a cursor in it was not changed. */
function cursorProblem(isMove: boolean, { name }: CursorOwner): string {
  if (!name) return isMove ? trans.__("The cell was not moved, because your cursor is in it.") : trans.__("The cell was not deleted, because your cursor is in it.");
  return isMove
    ? trans.__("The cell was not moved, because the cursor of %1 is in it. You can still move it yourself.", name)
    : trans.__("The cell was not deleted, because the cursor of %1 is in it. You can still delete it yourself.", name);
}

/** Return how a change that the notebook already contains was decided. */
function doneAs(notebook: YNotebook, { op, cell, new_cell }: Change): ["accepted" | "inserted", () => { cell: string }] {
  const isNew = notebook.cells.some(({ id }) => id === new_cell);
  return [isNew && op !== "insert" ? "inserted" : "accepted", () => ({ cell: isNew ? new_cell! : cell })];
}

/** Return whether a notebook shows outputs that were made elsewhere, and not confirmed by the user. */
function hasUntrustedOutput(panel: NotebookPanel): boolean {
  return panel.content.widgets.some((cell) => {
    const model = modelOf(cell) as (Cell["model"] & Partial<CodeCell["model"]>) | null;
    return Boolean(model?.outputs?.length) && !model?.trusted;
  });
}
