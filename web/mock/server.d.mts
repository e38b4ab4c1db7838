export const CODE: string;
export interface Mock {
  url: string;
  state: Record<string, any>;
  stop: () => Promise<void>;
  happen: (name: string, data?: Record<string, unknown>) => void;
}
export function start(options?: { port?: number; empty?: boolean; pace?: number; history?: number }): Promise<Mock>;
