/** Resumes an incomplete turn in place of its card: with the notebook's kernel, or else the server. */

import { type Api, NOT_YOURS, Refused } from "./api";
import type { Kernel } from "./kernel";
import { DRAWN_REQUEST, RESUME_REQUEST, sendOnControl } from "./send";
import { trans } from "./text";
import { type Bundle, TURN_MIME } from "./watch";

/** Time limit for the reply of a kernel that has loaded nb_agents, even while a cell runs. */
const LOADED_MS = 1500;

export interface Incomplete {
  /** The path in the bundle: relative to the notebook's folder, or absolute. */
  readonly path: string;
  /** The server's id. */
  readonly id: string;
}

/** The reply, made by nb_agents/jupyter/in_place.py. */
interface Reply {
  readonly content?: { readonly bundle?: Bundle; readonly refusal?: string; readonly is_not_yours?: boolean };
}

/**
 * Resume a turn.
 *
 * @returns The bundle of the new turn.
 * @throws Refused
 */
export async function resumeTurn(
  turn: Incomplete,
  kernel: Kernel | undefined,
  api: Pick<Api, "resume">,
  trust: boolean,
): Promise<Bundle> {
  if (kernel && (await hasLoaded(kernel))) return byKernel(turn, kernel, trust);
  const { id } = await api.resume(turn.id, trust);
  const path = [...turn.path.split(/[\\/]/).slice(0, -1), id.split("/").at(-1)].join("/");
  const said = trans.__("Resumed: %1", path);
  return { [TURN_MIME]: { path, state: "running" }, "text/html": `<p>${escaped(said)}</p>`, "text/plain": said };
}

async function byKernel({ path }: Incomplete, kernel: Kernel, trust: boolean): Promise<Bundle> {
  const reply = (await sendOnControl(kernel, RESUME_REQUEST, { turn: path, trust })) as Reply | undefined;
  const { bundle, refusal, is_not_yours } = reply?.content ?? {};
  if (bundle) return bundle;
  throw new Refused(refusal ?? trans.__("The kernel has ended."), { cause: is_not_yours ? NOT_YOURS : 0 });
}

/** Whether a kernel handles our requests. Other kernels never reply. */
async function hasLoaded(kernel: Kernel): Promise<boolean> {
  const late = new Promise<undefined>((resolve) => setTimeout(resolve, LOADED_MS));
  const asked = sendOnControl(kernel, DRAWN_REQUEST, { shown: "" }).catch(() => undefined);
  return (await Promise.race([asked, late])) !== undefined;
}

function escaped(text: string): string {
  const node = document.createElement("span");
  node.textContent = text;
  return node.innerHTML;
}
