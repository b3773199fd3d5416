/** Notifications about runs and sweeps out of sight that have ended or wait for the user. */

import type { NotificationManager } from "@jupyterlab/apputils";
import type { Run } from "./api";
import type { Claim } from "./claims";
import type { Change } from "./live-runs";
import type { Status } from "./panel-types";
import { settings } from "./settings";
import { trans } from "./text";

type Kind = "success" | "info" | "warning" | "error";

const KINDS: Partial<Record<Status, Kind>> = { complete: "success", failed: "error", "timed out": "warning" };

/** JupyterLab truncates a message at 140 characters. */
const TASK_LENGTH = 80;

export interface Needs {
  readonly notifications: Pick<NotificationManager, "notify">;
  /** Whether this tab shows the notification. */
  readonly claim: Claim;
  /** Whether the user can see its state. */
  isSeen(id: string): boolean;
  /** Get the state of a finished run or sweep. */
  run(id: string): Promise<Run | undefined>;
  open(run: Run): void;
}

/** Show a notification about a change, unless it is visible in some tab. */
export async function announce(change: Change, needs: Needs): Promise<void> {
  const which = settings().notifications;
  if (which === "none") return;
  const unseen = async (run: Run): Promise<boolean> => (await needs.claim(run.id)) && !needs.isSeen(run.id);
  const waiting = change.waiting.map(async (run) => {
    if (await unseen(run)) notify(needs, run, trans.__("Waits for you"), "warning");
  });
  const ended = (which === "all" ? change.ended : []).map(async (known) => {
    const run = (await unseen(known)) && (await needs.run(known.id));
    // The cell may show it by now, because it was run again.
    if (run && !needs.isSeen(run.id)) notify(needs, run, endText(run.state), KINDS[run.state] ?? "info");
  });
  await Promise.all([...waiting, ...ended]);
}

function notify({ notifications, open }: Needs, run: Run, what: string, kind: Kind): void {
  const show = { label: trans.__("Show"), caption: trans.__("Open it next to the notebook"), callback: () => open(run) };
  const message = `${what}${run.rows ? `, ${run.says}` : ""}: ${clip(run.task)}`;
  notifications.notify(message, kind, { autoClose: false, actions: [show] });
}

function endText(state: Status): string {
  const texts: Record<string, string> = {
    complete: trans.__("Complete"),
    failed: trans.__("Failed"),
    stopped: trans.__("Stopped"),
    "timed out": trans.__("Timed out"),
  };
  return texts[state] ?? trans.__("Ended");
}

function clip(text: string): string {
  return text.length > TASK_LENGTH ? `${text.slice(0, TASK_LENGTH)}…` : text;
}
