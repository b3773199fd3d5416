/** Tells a person who does not see a run that it is over, or that it waits for that person. */

import type { NotificationManager } from "@jupyterlab/apputils";
import type { Run } from "./api";
import type { Change } from "./live-runs";
import type { Status } from "./state";

type Kind = "success" | "info" | "warning" | "error";

const KINDS: Partial<Record<Status, Kind>> = { complete: "success", failed: "error" };

/** JupyterLab cuts a message at 140 characters. */
const TASK_LENGTH = 80;

export interface Needs {
  readonly notifications: Pick<NotificationManager, "notify">;
  /** Whether a person sees how this turn stands. */
  isSeen(id: string): boolean;
  /** Read how a turn stands that is over. */
  turn(id: string): Promise<Pick<Run, "state" | "task"> | undefined>;
  open(id: string): void;
}

/** Tell what has changed; who sees it already is not told. */
export async function tell(change: Change, needs: Needs): Promise<void> {
  for (const run of change.waiting) {
    if (!needs.isSeen(run.id)) notify(needs, run.id, `Waits for you: ${clip(run.task)}`, "warning");
  }
  for (const { id } of change.ended.filter((run) => !needs.isSeen(run.id))) {
    const turn = await needs.turn(id);
    if (turn) notify(needs, id, `${inWords(turn.state)}: ${clip(turn.task)}`, KINDS[turn.state] ?? "info");
  }
}

function notify({ notifications, open }: Needs, id: string, message: string, kind: Kind): void {
  const show = { label: "Show", caption: "Open it beside the notebook", callback: () => open(id) };
  notifications.notify(message, kind, { autoClose: false, actions: [show] });
}

function inWords(state: Status): string {
  return { complete: "Complete", failed: "Failed", stopped: "Stopped" }[state as string] ?? "Over";
}

function clip(text: string): string {
  return text.length > TASK_LENGTH ? `${text.slice(0, TASK_LENGTH)}…` : text;
}
