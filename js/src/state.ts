/**
 * The state of the panel: the synced trait, and pure functions for a pending click or an ended kernel. No
 * DOM here.
 */

import type { AgentRow, PanelState, Status } from "./panel-types";
import { trans } from "./text";

const EMPTY: PanelState = {
  run: "",
  session: "",
  turn: 0,
  task: "",
  status: "running",
  chip: "",
  round: "",
  elapsed: "",
  fraction: 0,
  bar: "",
  cost: "",
  in_flight: "",
  agents: [],
  gates: [],
  button: null,
  can_say: false,
  said: null,
  notices: [],
  footer: [],
  card: "",
};

/** Read the trait, which is `{}` until Python has set it. */
export function readState(value: unknown): PanelState {
  return { ...EMPTY, ...(value as Partial<PanelState> | null | undefined) };
}

export function isFinal(status: Status): boolean {
  return status === "stopped" || status === "failed" || status === "timed out" || status === "complete";
}

/** A sent stop that Python has not answered yet. */
export interface Pending {
  readonly now: boolean;
}

/** The parts of the state on which the Stop button depends. */
export type StopState = Pick<PanelState, "status" | "button">;

/** Whether the state answers a stop. Only the end answers an immediate one. */
export function isAnswered(pending: Pending, state: StopState): boolean {
  return isFinal(state.status) || (!pending.now && state.status === "stopping");
}

/** The label of a button that stops, gracefully or now. */
export function stopLabel(now: boolean): string {
  return now ? trans.__("Stop now") : trans.__("Stop");
}

/** The button's label while a stop is pending. */
export function pendingLabel(pending: Pending): string {
  return pending.now ? trans.__("Stopping now…") : trans.__("Stopping…");
}

/**
 * Return the last state for display after the end of its kernel: nothing is active, and there are no
 * buttons. The state of a finished turn is not changed.
 */
export function withoutKernel(state: PanelState): PanelState {
  if (isFinal(state.status)) return state;
  const line = trans.__(
    "The kernel has ended. Saved work is on disk: run %1 in a cell.",
    `%agents show ${state.session}/${state.turn}`,
  );
  return {
    ...state,
    status: "stopped",
    chip: trans.__("kernel stopped"),
    in_flight: "",
    button: null,
    gates: [],
    can_say: false,
    agents: state.agents.map(withoutActivity),
    notices: [...state.notices, line],
  };
}

/** Return a row of a run whose kernel is gone: nothing moves, and there is no Stop button. */
export function withoutActivity<Row extends AgentRow>(agent: Row): Row {
  const isMoving = agent.tone === "run" || agent.tone === "ing";
  return { ...agent, stop: null, writing: false, tone: isMoving ? "cut" : agent.tone };
}
