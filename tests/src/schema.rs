//! The committed JSON schemas, and what is checked against them.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// A schema that is committed, and is what its type generates.
#[derive(Debug)]
pub struct Schema(jsonschema::Validator);

/// The schema `name`. With `UPDATE_SCHEMAS` in the environment it is written anew.
///
/// # Panics
/// If it is not what `T` generates.
pub fn committed<T: JsonSchema>(name: &str) -> Schema {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../ramforge-cli/schemas/{name}.json"));
    // What programs write, not what they would read: every field is there, null or not.
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let generated = generator.into_root_schema_for::<T>().to_value();
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        let text = serde_json::to_string_pretty(&generated).expect("a schema is JSON");
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
        fs::write(&path, text + "\n").expect("the schema can be written");
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let committed: Value = serde_json::from_str(&text).expect("a schema is JSON");
    assert!(
        committed == generated,
        "{} is not what the types generate: run the tests with UPDATE_SCHEMAS=1 and look at the difference",
        path.display()
    );
    Schema(jsonschema::validator_for(&committed).expect("it is a schema"))
}

/// Checks a report against the committed schema.
///
/// # Panics
/// With everything that is wrong in it.
pub fn check_report(report: &Value) {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let text = include_str!("../../ramforge-cli/schemas/report.json");
        let schema = serde_json::from_str(text).expect("a schema is JSON");
        Schema(jsonschema::validator_for(&schema).expect("it is a schema"))
    });
    SCHEMA.check(report);
}

impl Schema {
    /// Checks `value`.
    ///
    /// # Panics
    /// With everything that is wrong in it.
    pub fn check(&self, value: &Value) {
        let wrong: Vec<String> =
            self.0.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(wrong.is_empty(), "{wrong:#?}\n{value:#}");
    }

    /// Whether `value` is as it says.
    pub fn holds(&self, value: &Value) -> bool {
        self.0.is_valid(value)
    }
}
