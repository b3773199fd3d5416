/** What other extensions of JupyterLab can use: `requires: [INbAgents]`. */

import { Token } from "@lumino/coreutils";
import type { Run } from "./api";

export type { Run };

/** The live runs and sweeps of the user, in all kernels. */
export interface INbAgents {
  /** The live runs and sweeps, oldest first. */
  readonly live: readonly Run[];
  /** Call back with the live runs at each change. Returns a function that ends this. */
  listen(listener: (live: readonly Run[]) => void): () => void;
  /** Stop a run or sweep by its id, as its Stop button does. */
  stop(id: string, now?: boolean): Promise<void>;
  /** Resume an incomplete turn by its id, and show it. */
  resume(id: string): Promise<void>;
  /** Go to the cell that shows a run, or open it next to the notebook. */
  open(id: string): void;
}

export const INbAgents = new Token<INbAgents>(
  "nb-agents:INbAgents",
  "Lists, stops, resumes and opens the user's runs of agents.",
);
