/** What the panel of a sweep shows: the synced trait of its widget. No DOM here. */

import type { SweepState } from "./panel-types";
import { isFinal, stilled } from "./state";

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
