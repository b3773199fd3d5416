/** Tells a person who does not see a run or a sweep that it is over, or that it waits for that person. */

import type { NotificationManager } from "@jupyterlab/apputils";
import type { Run } from "./api";
import type { Claim } from "./claims";
import type { Change } from "./live-runs";
import type { Status } from "./panel-types";

type Kind = "success" | "info" | "warning" | "error";

const KINDS: Partial<Record<Status, Kind>> = { complete: "success", failed: "error", "timed out": "warning" };

/** JupyterLab cuts a message at 140 characters. */
const TASK_LENGTH = 80;

export interface Needs {
  readonly notifications: Pick<NotificationManager, "notify">;
  /** Whether this tab is the one that notifies of it. */
  readonly claim: Claim;
  /** Whether a person sees how it stands. */
  isSeen(id: string): boolean;
  /** Read how something stands that is over. */
  run(id: string): Promise<Run | undefined>;
  open(run: Run): void;
}

/** Notify of a change, unless a person sees it already, in whichever tab. */
export async function announce(change: Change, needs: Needs): Promise<void> {
  const unseen = async (run: Run): Promise<boolean> => (await needs.claim(run.id)) && !needs.isSeen(run.id);
  const waiting = change.waiting.map(async (run) => {
    if (await unseen(run)) notify(needs, run, "Waits for you", "warning");
  });
  const ended = change.ended.map(async (known) => {
    const run = (await unseen(known)) && (await needs.run(known.id));
    // Its cell may have been run again meanwhile, which shows it.
    if (run && !needs.isSeen(run.id)) notify(needs, run, inWords(run.state), KINDS[run.state] ?? "info");
  });
  await Promise.all([...waiting, ...ended]);
}

function notify({ notifications, open }: Needs, run: Run, what: string, kind: Kind): void {
  const show = { label: "Show", caption: "Open it beside the notebook", callback: () => open(run) };
  const message = `${what}${run.rows ? `, ${run.says}` : ""}: ${clip(run.task)}`;
  notifications.notify(message, kind, { autoClose: false, actions: [show] });
}

function inWords(state: Status): string {
  return { complete: "Complete", failed: "Failed", stopped: "Stopped", "timed out": "Timed out" }[state as string] ?? "Over";
}

function clip(text: string): string {
  return text.length > TASK_LENGTH ? `${text.slice(0, TASK_LENGTH)}…` : text;
}
