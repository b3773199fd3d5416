/** The state of a sweep's panel: the synced trait of its widget. No DOM here. */

import type { SweepState } from "./panel-types";
import { isFinal, withoutActivity } from "./state";
import { trans } from "./text";

export function isSweep(value: unknown): value is SweepState {
  return typeof value === "object" && value !== null && "sweep" in value;
}

/** Return the last state for display after the end of its kernel; see `withoutKernel` in state.ts. */
export function sweepWithoutKernel(state: SweepState): SweepState {
  if (isFinal(state.status)) return state;
  const line = trans.__("The kernel has ended. Saved work is on disk: run the cell again to continue.");
  return {
    ...state,
    status: "stopped",
    chip: trans.__("kernel stopped"),
    button: null,
    hold: "",
    steering: null,
    open: null,
    rows: state.rows.map(withoutActivity),
    notices: [...state.notices, line],
  };
}
