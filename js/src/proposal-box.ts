/** Shows a proposed change at its cell, and counts the open ones below the cell of the run. */

import type { NotebookPanel } from "@jupyterlab/notebook";
import type { Change, Fit } from "./cell-changes";
import { button, caption, keepKeys, makeDiff, text } from "./change-parts";
import { make, setAttr, setHidden, setText } from "./dom";
import { trans } from "./text";

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

/** A proposal at its cell. */
export interface Box {
  readonly el: HTMLElement;
  draw(fit: Fit | "lost", current: string): void;
  /** Show whether another page decides the proposal. */
  setClaimed(isClaimed: boolean): void;
  focus(): void;
  remove(): void;
}

export interface BoxActions {
  accept(): Promise<void>;
  asNew(): Promise<void>;
  reject(): Promise<void>;
  force(): Promise<void>;
}

export function makeBox(change: Change, actions: BoxActions): Box {
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

export interface Bar {
  draw(count: number, host: HTMLElement): void;
}

export interface BarActions {
  next(): void;
  acceptAll(): Promise<void>;
  rejectAll(): Promise<void>;
}

/** The line below the run's cell that counts its open proposals. */
export function makeBar(panel: NotebookPanel, actions: BarActions): Bar {
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
