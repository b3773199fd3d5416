/** What the panel of a sweep shows: the synced trait of its widget. No DOM here. */

import { type AgentRow, type PanelState, type Status, type StopButton, type Tone, isFinal, stilled } from "./state";

export interface SweepRow extends AgentRow {
  /** The run that works on it. */
  readonly run: string;
}

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
  readonly counts: readonly { readonly text: string; readonly tone: Tone | "" }[];
  readonly failures: readonly { readonly row: string; readonly why: string }[];
  /** How many failures are not listed, in words. */
  readonly more_failures: string;
  /** The rows at work. */
  readonly rows: readonly SweepRow[];
  readonly more_rows: string;
  /** The one row whose run is drawn whole. */
  readonly open: { readonly row: string; readonly state: PanelState } | null;
  readonly button: StopButton | null;
  /** What can be asked of all rows at work. */
  readonly hold: "pause" | "continue" | "";
  readonly notices: readonly string[];
  readonly footer: readonly string[];
  /** "" while live; at the end the finished card, made and escaped by Python. */
  readonly card: string;
}

export function isSweep(value: unknown): value is SweepState {
  return typeof value === "object" && value !== null && "sweep" in value;
}

/** The last state as it is to be shown once its kernel is gone; see `withoutKernel` in state.ts. */
export function sweepWithoutKernel(state: SweepState): SweepState {
  if (isFinal(state.status)) return state;
  const line = "The kernel stopped. What was kept is on disk: run the cell again, and it goes on from there.";
  return {
    ...state,
    status: "stopped",
    chip: "kernel stopped",
    button: null,
    hold: "",
    open: null,
    rows: state.rows.map(stilled),
    notices: [...state.notices, line],
  };
}
