//! The `lunet` program: the server, and the commands that ask it. The tools are another program, which this one runs.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use lunet_cli::{Cli, Command, Daemon, Generator, Serve, tools};
use lunet_config::place::Layout;
use lunet_daemon::{generator, helper, log, offline, plan, rest, serve};
use zeroize::Zeroizing;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(asked) = lunet_cli::completion_asked() {
        match tools::named(&asked) {
            Some(_) => return tools::complete(&words),
            None => lunet_cli::answer_a_shell::<Cli>(),
        }
    }
    if let Some(command) = tools::named(&words) {
        return tools::run(command, &words);
    }
    let Cli { remote, command } = lunet_cli::parse(&words);
    if lunet_cli::owner::has_ended() {
        return ExitCode::FAILURE;
    }
    let done = |()| ExitCode::SUCCESS;
    let result = match command {
        Command::Serve(options) => remote
            .only_here("`lunet serve`")
            .and_then(|()| serve::serve(&serve_options(options)))
            .map(done),
        Command::ServeRest => rest::run().map(done),
        Command::ServeHelper => helper::run().map(done),
        Command::SystemdGenerator(options) => generator::run(&places(options)),
        Command::Client(command) => lunet_cli::run(command, &Here),
        // A tool behind something that only the parser understands, such as `--`.
        Command::Tools(command) => return tools::run(command.name(), &words),
    };
    let code = result.unwrap_or_else(|error| {
        lunet_cli::failure(&error).lines().for_each(log::fail);
        ExitCode::FAILURE
    });
    log::finish();
    code
}

/// The server's code of this program.
struct Here;

impl Daemon for Here {
    fn check_config(&self, file: &Path) -> Result<ExitCode> {
        offline::check_config(file)
    }

    fn read_config(&self, file: &Path) -> Result<Zeroizing<String>> {
        plan::read_own(file)
    }

    fn create_group(
        &self,
        name: &str,
        gateways: u16,
        file: &Path,
        shared: Option<&Path>,
    ) -> Result<String> {
        offline::create_group(name, gateways, file, shared)
    }

    fn group_config(&self, name: &str, file: &Path) -> Result<Zeroizing<String>> {
        offline::group_config(name, file)
    }
}

fn serve_options(options: Serve) -> plan::Options {
    plan::Options {
        config: options.config,
        data: options.data,
        listen: options.listen,
        listen_nvme: options.listen_nvme,
        listen_control: options.listen_control,
        size: options.size,
        socket: options.socket,
        default_data: lunet_cli::data_variable(),
        create: options.create,
        open: options.open,
        service: options.service.then(|| Layout::of_service(|name| std::env::var_os(name))),
        user: options.user,
    }
}

fn places(options: Generator) -> generator::Places {
    generator::Places {
        directories: options.directories,
        config: options.config,
        devices: options.devices,
        fstab: options.fstab,
    }
}
