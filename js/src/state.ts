/**
 * What the panel shows: the one synced trait, and the pure functions which turn it into what is
 * drawn while a click is under way or after the kernel has gone. No DOM here.
 */

export type Status = "running" | "stopping" | "stopped" | "failed" | "complete";
export type Tone = "run" | "ok" | "ing" | "cut" | "err";

export interface AgentRow {
  /** Unique in the run: the key of the row. */
  readonly id: string;
  readonly model: string;
  readonly chip: string;
  readonly tone: Tone;
  readonly says: string;
  readonly writing: boolean;
  readonly numbers: string;
  /** What its own Stop button asks for; without it there is no button. */
  readonly stop?: { readonly now: boolean } | null;
  /** Of a unit of a recipe, whose `id` is its address, and of who may be called: the name that is shown. */
  readonly name?: string;
  /** How many units it is in, or how many called one another until it. */
  readonly depth?: number;
  /** Its prompt or command. */
  readonly title?: string;
  /** Of a recipe: whether it has not begun. */
  readonly pending?: boolean;
  /** Whether it is the one in hand. */
  readonly current?: boolean;
}

/** Whether a recipe may go on, whether something else may be done, or a text. */
export type Asked = "stage" | "approval" | "text";

/** A question that waits until a person answers it. */
export interface Gate {
  /** Unique in the run. */
  readonly id: string;
  readonly name: string;
  readonly asks: Asked;
  readonly prompt: string;
  /** What becomes of it when nobody answers, such as "58 s, then denied". */
  readonly countdown: string;
}

export interface StopButton {
  readonly label: string;
  /** What a click asks for: true is an immediate stop, false a graceful one. */
  readonly now: boolean;
  readonly title: string;
}

/** The last follow-up text, and who has read it, in words. */
export interface Said {
  readonly text: string;
  readonly read: string;
}

export interface PanelState {
  readonly run: string;
  readonly session: string;
  readonly turn: number;
  readonly task: string;
  readonly status: Status;
  readonly chip: string;
  readonly round: string;
  readonly elapsed: string;
  /** How full the bar is, 0..1, and what of. */
  readonly fraction: number;
  readonly bar: string;
  readonly cost: string;
  readonly in_flight: string;
  readonly agents: readonly AgentRow[];
  /** Oldest first. */
  readonly gates: readonly Gate[];
  readonly button: StopButton | null;
  /** Whether the run takes follow-up texts. */
  readonly can_say: boolean;
  readonly said: Said | null;
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** "" while live; at the end the finished card, made and escaped by Python. */
  readonly card: string;
}

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
  return status === "stopped" || status === "failed" || status === "complete";
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
