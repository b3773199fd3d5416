/**
 * What the panel shows: the one synced trait, and the pure functions which turn it into what is
 * drawn while a click is under way or after the kernel has gone. No DOM here.
 */

import type { AgentRow, PanelState, Status } from "./panel-types";

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

/** A stop that this page has sent and Python has not yet answered. */
export interface Pending {
  readonly now: boolean;
}

/** What the big Stop button depends on. */
export type StopState = Pick<PanelState, "status" | "button">;

/** Tell whether the state answers the stop: an immediate one is answered only by the end. */
export function isAnswered(pending: Pending, state: StopState): boolean {
  return isFinal(state.status) || (!pending.now && state.status === "stopping");
}

/** The button with its words while a stop is under way. */
export function pendingLabel(pending: Pending): string {
  return pending.now ? "Stopping now…" : "Stopping…";
}

/**
 * The last state as it is to be shown once its kernel is gone: nothing moves and nothing can be
 * pressed. A turn that had ended is left as it is.
 */
export function withoutKernel(state: PanelState): PanelState {
  if (isFinal(state.status)) return state;
  const line =
    "The kernel stopped. What was kept is on disk: " +
    `run %agents show ${state.session}/${state.turn} in a cell.`;
  return {
    ...state,
    status: "stopped",
    chip: "kernel stopped",
    in_flight: "",
    button: null,
    gates: [],
    can_say: false,
    agents: state.agents.map(stilled),
    notices: [...state.notices, line],
  };
}

export function stilled<Row extends AgentRow>(agent: Row): Row {
  const isMoving = agent.tone === "run" || agent.tone === "ing";
  return { ...agent, stop: null, writing: false, tone: isMoving ? "cut" : agent.tone };
}
