/** Made by `make js-types` from nb_agents/presentation/panel_types.py; change that. */

/** The state of a run: `RunView.state`. */
export type Status = "running" | "stopping" | "complete" | "stopped" | "failed" | "timed out";

export type Tone = "run" | "ok" | "ing" | "cut" | "err";

/** What a gate asks for: to continue a recipe, approve a call, give text or raise the budget. */
export type Asked = "stage" | "approval" | "text" | "budget";

/** The kind of a transcript part.

"writing" is an unfinished answer, "call" the arguments of a tool call. */
export type PieceKind = "text" | "thought" | "writing" | "call" | "tool" | "output" | "answer" | "vote" | "note";

/** The state of a listed row of a sweep. "waiting" is for the user. */
export type RowState = "running" | "waiting" | "complete" | "failed" | "timed out" | "stopped";

/** The stop level that a row's Stop button requests. */
export interface RowStop {
  readonly now: boolean;
}

/** A row of the panel: an agent, a unit of a recipe, or a row of a sweep. */
export interface AgentRow {
  /** The key of the row, unique in the run. */
  readonly id: string;
  readonly model: string;
  readonly chip: string;
  readonly tone: Tone;
  readonly says: string;
  readonly writing: boolean;
  readonly numbers: string;
  /** Missing or null if the row has no button. */
  readonly stop?: RowStop | null;
  /** The name to show, if the id is an address. */
  readonly name?: string;
  /** Number of units around it, or of its callers. */
  readonly depth?: number;
  /** The prompt or command. */
  readonly title?: string;
  /** Whether a recipe's unit has not started. */
  readonly pending?: boolean;
  /** Whether it is the current row. */
  readonly current?: boolean;
  /** False if it has no transcript. */
  readonly opens?: boolean;
  /** Whether it has a button that runs it again. */
  readonly again?: boolean;
}

/** A part of a transcript, or the continuation of one: text, a call, a result or a note. */
export interface Piece {
  /** Consecutive parts with the same id belong together. */
  readonly id: string;
  readonly kind: PieceKind;
  /** Empty for plain text. */
  readonly title: string;
  readonly text: string;
}

/** What an agent wrote and did, starting at a position in its turn's journal. */
export interface Transcript {
  readonly pieces: readonly Piece[];
  /** The journal position to read from next, in bytes. */
  readonly end: number;
  /** Whether the journal already has more to read. */
  readonly more: boolean;
}

/** A question that is waiting for the user. */
export interface GateQuestion {
  /** Unique in the run. */
  readonly id: string;
  readonly name: string;
  readonly asks: Asked;
  readonly prompt: string;
  /** What happens if nobody answers, such as "58 s, then denied". */
  readonly countdown: string;
}

/** The Stop button of a run or sweep. */
export interface StopButton {
  readonly label: string;
  /** Whether a click requests an immediate stop instead of a graceful one. */
  readonly now: boolean;
  readonly title: string;
}

/** The last message to the agents, and a note on who has read it. */
export interface FollowUp {
  readonly text: string;
  readonly read: string;
}

/** The panel of a run. */
export interface PanelState {
  readonly run: string;
  readonly session: string;
  readonly turn: number;
  readonly task: string;
  readonly status: Status;
  readonly chip: string;
  readonly round: string;
  readonly elapsed: string;
  /** How full the bar is, from 0 to 1. `bar` is its label. */
  readonly fraction: number;
  readonly bar: string;
  readonly cost: string;
  readonly in_flight: string;
  readonly agents: readonly AgentRow[];
  /** Open gates, oldest first. */
  readonly gates: readonly GateQuestion[];
  readonly button: StopButton | null;
  /** Whether the run accepts messages. */
  readonly can_say: boolean;
  readonly said: FollowUp | null;
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** The finished card as escaped HTML. Empty while the run is live. */
  readonly card: string;
  /** Whether all agents wait for their providers. */
  readonly waits?: boolean;
  /** The answers on the card as Markdown, in their order. */
  readonly answers?: readonly string[];
  /** Data of extensions, by name. */
  readonly parts?: Readonly<Record<string, unknown>>;
  /** For a large team: the numbers of agents by activity, such as "4 writing · 1 failed". */
  readonly summary?: string;
}

/** A row of a sweep that is live or has ended. */
export interface SweepRow extends AgentRow {
  /** The id of the row's run. */
  readonly run: string;
  readonly state: RowState;
  readonly tokens: number;
  readonly score: number | null;
}

/** The number of rows in a state, as text. */
export interface RowCount {
  readonly text: string;
  readonly tone: Tone | "";
  /** The state, if rows in it are listed. */
  readonly state: RowState | "";
}

/** A row that failed. */
export interface RowFailure {
  readonly row: string;
  readonly why: string;
}

/** The open row, with the state of its panel. */
export interface OpenRow {
  readonly row: string;
  readonly title: string;
  readonly state: PanelState;
}

/** A model or provider whose rows can be paused. */
export interface SweepModel {
  readonly name: string;
  readonly is_paused: boolean;
}

/** What the user can change about a running sweep. */
export interface SweepSteering {
  /** The limits as text. */
  readonly says: string;
  readonly limit: number;
  readonly max_cost: number | null;
  /** In seconds. */
  readonly timeout: number | null;
  readonly models: readonly SweepModel[];
  readonly can_score: boolean;
  readonly failed: number;
}

/** The panel of a sweep. */
export interface SweepState {
  readonly sweep: string;
  readonly task: string;
  readonly status: Status;
  readonly chip: string;
  readonly round: string;
  readonly fraction: number;
  readonly bar: string;
  readonly in_flight: string;
  readonly elapsed: string;
  readonly cost: string;
  readonly counts: readonly RowCount[];
  readonly failures: readonly RowFailure[];
  /** The number of failures that are not listed, as text. */
  readonly more_failures: string;
  /** The live rows, and the rows that ended last, newest first. */
  readonly rows: readonly SweepRow[];
  readonly more_rows: string;
  readonly open: OpenRow | null;
  readonly button: StopButton | null;
  /** The action of the second button, on all live rows. */
  readonly hold: "pause" | "unpause" | "";
  /** Null while nothing can be changed. */
  readonly steering: SweepSteering | null;
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** The finished card as escaped HTML. Empty while the sweep is live. */
  readonly card: string;
}
