/**
 * Lets agents read the notebook that shows their run, and shows their proposed changes at the cells.
 *
 * Nothing changes before the user accepts. A proposal is untrusted text: it is never rendered as HTML or Markdown.
 */

import type { YNotebook } from "@jupyter/ydoc";
import type { Cell, CodeCell } from "@jupyterlab/cells";
import type { INotebookCellExecutor, NotebookPanel } from "@jupyterlab/notebook";
import type { Answer } from "./api";
import {
  type Applied,
  type Change,
  type Fit,
  type LeftCell,
  type RevertStep,
  applyChange,
  applyRevert,
  fitOf,
  insertAsNew,
  isReload,
  readCells,
  replacesEditor,
} from "./cell-changes";
import { diffLines } from "./cell-diff";
import { imagesOf, listOutputs } from "./cell-outputs";
import { CellRuns, type RunPart, type WantedRun } from "./cell-runs";
import { type Place, modelOf } from "./cells";
import { type CursorOwner, cursorIn } from "./cursors";
import { make, setAttr, setHidden, setText } from "./dom";
import { pageName } from "./page-name";
import { listen } from "./press";
import { trans } from "./text";

/** What a turn's state says about cells, as in `nb_agents/extensions/notebook_cells/cell_views.py`. */
interface CellsPart {
  readonly requests: readonly CellsRequest[];
  readonly open: readonly number[];
  /** Whether the changes after the checkpoint of a rewind are still to be taken back. */
  readonly revert?: boolean;
  /** The open requests to run a cell. */
  readonly runs?: readonly RunPart[];
}

interface CellsRequest {
  readonly request: number;
  readonly ids: readonly string[];
  readonly outputs?: boolean;
  /** Whether the user has allowed to read a notebook that is not trusted. */
  readonly untrusted?: boolean;
  /** Whether the agent also gets the images in the outputs. */
  readonly images?: boolean;
  /** For an outline, the number of cells to skip. */
  readonly start?: number;
}

/** How a page takes back changes, or who does. */
export interface RevertPlan {
  readonly open: boolean;
  readonly mine: boolean;
  readonly steps?: readonly RevertStep[];
  readonly kept?: readonly { readonly cell: string; readonly agent: string; readonly why: string; readonly diff: string }[];
  readonly done?: readonly string[];
}

/** Whether a proposal is still open, and whether this page may decide it. */
export interface Claim {
  readonly open: boolean;
  readonly mine: boolean;
}

export interface CellsApi {
  /** Claim a proposal before it is decided. Of several pages, one gets it. */
  claim(turn: string, body: object): Promise<Claim>;
  /** List the proposals of a turn. Accepted ones have texts only if they are newer than `since`. */
  proposals(turn: string, since?: number): Promise<readonly Change[]>;
  /** Ask how to take back the changes of a rewind. One page gets the plan. */
  revertPlan(turn: string, body: object): Promise<RevertPlan>;
  /** List a turn's open requests to run a cell. */
  cellRuns(turn: string): Promise<readonly WantedRun[]>;
  tryPost(turn: string, verb: string, body: object): Promise<Answer>;
  /** Send a verb. Resolves to whether it had an effect. */
  hasChanged(turn: string, verb: string, body: object): Promise<boolean>;
}

/** Return what a turn's state says about cells. Undefined if its agents have not used the notebook. */
export function cellsPart(parts: unknown): CellsPart | undefined {
  const part = (parts as { readonly cells?: Partial<CellsPart> } | undefined)?.cells;
  return part && Array.isArray(part.open) && Array.isArray(part.requests) ? (part as CellsPart) : undefined;
}

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
    const turns = this.shown.get(place.panel) ?? new Map<string, TurnProposals>();
    this.shown.set(place.panel, turns);
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

function titleOf({ op, agent }: Change): string {
  const titles: Readonly<Record<Change["op"], string>> = {
    insert: trans.__("%1 proposes a new cell here", agent),
    replace: trans.__("%1 proposes to change this cell", agent),
    delete: trans.__("%1 proposes to delete this cell", agent),
    move: trans.__("%1 proposes to move this cell", agent),
  };
  return titles[op];
}

/** Say why a proposal can't be applied, or "". */
function problemOf(fit: Fit | "lost"): string {
  const problems: Readonly<Record<Fit | "lost", string>> = {
    lost: trans.__("This change was accepted, but the notebook was closed or reverted before it was saved."),
    fits: "",
    done: "",
    changed: trans.__("The cell has changed since the agent read it, so the proposal can't be applied. Compare your changes with the agent's."),
    locked: trans.__("The metadata of the cell says that agents must not edit it, so the proposal can't be applied."),
    missing: trans.__("The cell is no longer in the notebook, so the proposal can't be applied."),
  };
  return problems[fit];
}

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

interface Box {
  readonly el: HTMLElement;
  draw(fit: Fit | "lost", current: string): void;
  /** Show whether another page decides the proposal. */
  setClaimed(isClaimed: boolean): void;
  focus(): void;
  remove(): void;
}

interface BoxActions {
  accept(): Promise<void>;
  asNew(): Promise<void>;
  reject(): Promise<void>;
  force(): Promise<void>;
}

const life = new AbortController().signal;

function makeBox(change: Change, actions: BoxActions): Box {
  const accept = button(trans.__("Accept"), () => void actions.accept());
  const asNew = button(trans.__("Insert as a new cell"), () => void actions.asNew());
  const reject = button(trans.__("Reject"), () => void actions.reject());
  const force = button(trans.__("Decide here"), () => void actions.force());
  const title = make("strong");
  title.textContent = titleOf(change);
  const why = text("p", "why", change.why ?? "");
  const problem = text("p", "problem", "");
  const head = make("header", "", title, make("span", "buttons", accept, asNew, reject, force));
  const claimed = text("p", "problem", "");
  setHidden(force, true);
  const proposed = makeDiff(change.base ?? "", change.source ?? "");
  const theirs = make("div", "side", caption(trans.__("%1's changes", change.agent)), proposed);
  const mine = make("div", "side");
  const el = make("section", "nba-change", head, why, problem, claimed, change.op === "move" ? make("p", "where") : make("div", "sides", mine, theirs));
  let shown: string | undefined;
  el.setAttribute("aria-label", trans.__("Proposed change %1", change.number));
  keepKeys(el);
  return {
    el,
    draw(fit, current) {
      setText(problem, problemOf(fit));
      setHidden(problem, fit === "fits");
      setHidden(accept, fit !== "fits" && fit !== "lost");
      setHidden(asNew, fit === "fits" || fit === "lost" || change.op === "delete" || change.op === "move");
      setAttr(el, "data-fit", fit);
      setHidden(mine, fit !== "changed");
      if (fit === "changed" && current !== shown)
        mine.replaceChildren(caption(trans.__("Your changes")), makeDiff(change.base ?? "", (shown = current)));
    },
    setClaimed(isClaimed) {
      setText(claimed, isClaimed ? trans.__("Another page decides this proposal.") : "");
      setHidden(claimed, !isClaimed);
      setHidden(force, !isClaimed);
    },
    focus() {
      el.scrollIntoView({ block: "nearest" });
      (accept.hidden ? reject : accept).focus({ preventScroll: true });
    },
    remove: () => el.remove(),
  };
}

function caption(label: string): HTMLElement {
  return text("p", "caption", label);
}

/** Says which changes were taken back after a rewind, and which cells stay. */
class RevertReport {
  private readonly title = make("strong");
  private readonly force: HTMLButtonElement;
  private readonly details = make("div");
  private readonly el: HTMLElement;

  constructor(
    private readonly panel: NotebookPanel,
    private readonly host: HTMLElement,
    again: () => void,
  ) {
    this.force = button(trans.__("Take back here"), () => {
      this.el.remove();
      again();
    });
    this.force.hidden = true;
    const close = button(trans.__("Close"), () => this.el.remove());
    const head = make("header", "", this.title, make("span", "buttons", this.force, close));
    this.el = make("section", "nba-change nba-reverted", head, this.details);
    this.el.setAttribute("role", "status");
    keepKeys(this.el);
  }

  showOther(): void {
    setText(this.title, trans.__("Another page is taking back the changes after the checkpoint."));
    setHidden(this.force, false);
    this.host.append(this.el);
  }

  /**
   * @param count The number of cells whose changes were taken back.
   * @param kept The cells that the user had edited since.
   * @param left The cells that could not be changed at the last moment.
   */
  show(count: number, kept: NonNullable<RevertPlan["kept"]>, left: readonly LeftCell[]): void {
    if (!count && !kept.length && !left.length) return;
    setText(this.title, trans._n("The rewind took back the changes of %1 cell.", "The rewind took back the changes of %1 cells.", count));
    for (const { cell, agent, why, diff } of kept) {
      const index = this.panel.content.widgets.findIndex(({ model }) => model.id === cell);
      this.details.append(text("p", "", keptText(index, why === "gone", agent)));
      if (diff) this.details.append(makeLines(diff.split("\n").filter((line) => !line.startsWith("@@"))));
    }
    for (const { cell, cursor } of left) {
      const index = this.panel.content.widgets.findIndex(({ model }) => model.id === cell);
      this.details.append(text("p", "", leftText(index, cursor)));
    }
    this.host.append(this.el);
  }
}

/** Say why a change was not taken back. The index of a cell that is no longer there is -1. */
function keptText(index: number, isGone: boolean, agent: string): string {
  if (index < 0)
    return isGone
      ? trans.__("A cell is no longer there, so its change by %1 was not taken back.", agent)
      : trans.__("A cell stays, because you have edited it since. The change by %1 was not taken back.", agent);
  return isGone
    ? trans.__("Cell %1 is no longer there, so its change by %2 was not taken back.", index + 1, agent)
    : trans.__("Cell %1 stays, because you have edited it since. The change by %2 was not taken back.", index + 1, agent);
}

/** Say why a change was not taken back at the last moment. The index of a cell that is no longer there is -1. */
function leftText(index: number, cursor: CursorOwner | undefined): string {
  if (index < 0) return trans.__("A cell is no longer there, so its change was not taken back.");
  if (!cursor) return trans.__("Cell %1 stays, because it has just changed. Its change was not taken back.", index + 1);
  return cursor.name
    ? trans.__("Cell %1 stays, because the cursor of %2 is in it. Its change was not taken back.", index + 1, cursor.name)
    : trans.__("Cell %1 stays, because your cursor is in it. Its change was not taken back.", index + 1);
}

/** Show the lines of a unified diff. */
function makeLines(diff: readonly string[]): HTMLElement {
  const kinds: Readonly<Record<string, string>> = { "+": "added", "-": "removed" };
  const lines = diff.map((line) => {
    const row = text("span", kinds[line[0] ?? ""] ?? "same", line.slice(1));
    row.dataset.sign = line[0] ?? " ";
    return row;
  });
  const el = make("pre", "diff", ...lines);
  el.tabIndex = 0; // it scrolls
  return el;
}

function makeDiff(before: string, after: string): HTMLElement {
  const lines = diffLines(before, after).map(({ kind, text: line }) => {
    const row = text("span", kind, line);
    row.dataset.sign = { same: " ", removed: "-", added: "+" }[kind];
    return row;
  });
  const diff = make("pre", "diff", ...lines);
  diff.tabIndex = 0; // it scrolls
  return diff;
}

interface Bar {
  draw(count: number, host: HTMLElement): void;
}

interface BarActions {
  next(): void;
  acceptAll(): Promise<void>;
  rejectAll(): Promise<void>;
}

/** The line below the run's cell that counts its open proposals. */
function makeBar(panel: NotebookPanel, actions: BarActions): Bar {
  const count = make("span");
  count.setAttribute("role", "status");
  const next = button(trans.__("Next"), actions.next);
  const accept = button(trans.__("Accept all"), () => void actions.acceptAll());
  const reject = button(trans.__("Reject all"), () => void actions.rejectAll());
  const el = make("div", "nba-strip nba-changes", count, next, accept, reject);
  keepKeys(el);
  return {
    draw(number, host) {
      setText(count, trans._n("%1 proposed change", "%1 proposed changes", number));
      if (number === 0 || panel.isDisposed) el.remove();
      else if (el.parentElement !== host) host.append(el);
    },
  };
}

function button(label: string, press: () => void): HTMLButtonElement {
  const element = make("button");
  element.type = "button";
  element.textContent = label;
  listen(element, life, press);
  return element;
}

function text(tag: "p" | "span", className: string, content: string): HTMLElement {
  const element = make(tag, className);
  element.dir = "auto";
  element.textContent = content;
  element.hidden = content === "" && tag === "p";
  return element;
}

/** Keep clicks and keys from the notebook, which would select or edit the cell. */
function keepKeys(el: HTMLElement): void {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const kind of ["keydown", "mousedown", "dblclick"]) el.addEventListener(kind, (event) => event.stopPropagation());
}
