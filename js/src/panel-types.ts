/** Made by `make js-types` from nb_agents/presentation/panel_types.py; change that. */

/** How a run stands: `RunView.state`. */
export type Status = "running" | "stopping" | "complete" | "stopped" | "failed" | "timed out";

export type Tone = "run" | "ok" | "ing" | "cut" | "err";

/** Whether a recipe may go on, whether something else may be done, or a text. */
export type Asked = "stage" | "approval" | "text";

/** Of an answer that is being written "writing", of a call's arguments "call". */
export type PieceKind = "text" | "thought" | "writing" | "call" | "tool" | "output" | "answer" | "vote" | "note";

/** What a row's own Stop button asks for. */
export interface RowStop {
  readonly now: boolean;
}

/** A row of the panel: an agent, a recipe's unit, or a row of a sweep. */
export interface AgentRow {
  /** Unique in the run: the key of the row. */
  readonly id: string;
  readonly model: string;
  readonly chip: string;
  readonly tone: Tone;
  readonly says: string;
  readonly writing: boolean;
  readonly numbers: string;
  /** Without it there is no button. */
  readonly stop?: RowStop | null;
  /** The name that is shown, where the id is an address. */
  readonly name?: string;
  /** How many units it is in, or how many called one another until it. */
  readonly depth?: number;
  /** Its prompt or command. */
  readonly title?: string;
  /** Of a recipe: whether it has not begun. */
  readonly pending?: boolean;
  /** Whether it is the one in hand. */
  readonly current?: boolean;
  /** False where it has no transcript. */
  readonly opens?: boolean;
}

/** Something that an agent wrote, did or was told, or more of it. */
export interface Piece {
  /** Pieces of one id that follow one another are one part of the transcript. */
  readonly id: string;
  readonly kind: PieceKind;
  /** "" for words. */
  readonly title: string;
  readonly text: string;
}

/** What an agent wrote and did, from some place of its turn's journal on. */
export interface Transcript {
  readonly pieces: readonly Piece[];
  /** The place up to which the journal was read: what comes next begins there. */
  readonly end: number;
  /** Whether there is more by now. */
  readonly more: boolean;
}

/** A question that waits until a person answers it. */
export interface GateQuestion {
  /** Unique in the run. */
  readonly id: string;
  readonly name: string;
  readonly asks: Asked;
  readonly prompt: string;
  /** What becomes of it when nobody answers, such as "58 s, then denied". */
  readonly countdown: string;
}

/** The big Stop button. */
export interface StopButton {
  readonly label: string;
  /** What a click asks for: true is an immediate stop, false a graceful one. */
  readonly now: boolean;
  readonly title: string;
}

/** The last follow-up text, and who has read it, in words. */
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
  /** How full the bar is, 0..1, and what of. */
  readonly fraction: number;
  readonly bar: string;
  readonly cost: string;
  readonly in_flight: string;
  readonly agents: readonly AgentRow[];
  /** Oldest first. */
  readonly gates: readonly GateQuestion[];
  readonly button: StopButton | null;
  /** Whether the run takes follow-up texts. */
  readonly can_say: boolean;
  readonly said: FollowUp | null;
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** "" while live; at the end the finished card, made and escaped by Python. */
  readonly card: string;
  /** The answers on the card, as Markdown, in its order. */
  readonly answers?: readonly string[];
}

/** A row of a sweep that is at work. */
export interface SweepRow extends AgentRow {
  /** The run that works on it. */
  readonly run: string;
}

/** How many rows there are of a kind, in words. */
export interface RowCount {
  readonly text: string;
  readonly tone: Tone | "";
}

/** A row that failed. */
export interface RowFailure {
  readonly row: string;
  readonly why: string;
}

/** The one row whose run is drawn whole. */
export interface OpenRow {
  readonly row: string;
  readonly state: PanelState;
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
  /** How many failures are not listed, in words. */
  readonly more_failures: string;
  /** The rows at work. */
  readonly rows: readonly SweepRow[];
  readonly more_rows: string;
  readonly open: OpenRow | null;
  readonly button: StopButton | null;
  /** What can be asked of all rows at work. */
  readonly hold: "pause" | "continue" | "";
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** "" while live; at the end the finished card, made and escaped by Python. */
  readonly card: string;
}
